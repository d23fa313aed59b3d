"""Conan 2: the header, and the implementation as a library.

    conan create .packaging/conan -o 'mlcore/*:shared=True' -o 'mlcore/*:without=VISION;SKETCH'

The sources are the checkout that this file is in. CMakeDeps makes CMake's own targets of it:
mlcore::mlcore, the header alone, and mlcore::impl, the library.
"""
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Mlcore(ConanFile):
    name = "mlcore"
    description = "Trains neural networks in plain C: one header"
    license = "MIT-0 OR LicenseRef-public-domain"
    topics = ("neural-network", "deep-learning", "machine-learning", "single-header")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "without": ["ANY"]}
    default_options = {"shared": False, "fPIC": True, "without": ""}

    def checkout(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        header = load(self, os.path.join(self.checkout(), "mlcore.h"))
        self.version = re.search(r'#define MLC_VERSION_STRING "(.*)"', header)[1]

    def export_sources(self):
        for name in ("mlcore.h", "CMakeLists.txt", "LICENSE"):
            copy(self, name, self.checkout(), self.export_sources_folder)

    def configure(self):
        if self.options.shared:
            self.options.rm_safe("fPIC")
        # The library is C, which has no runtime of C++.
        self.settings.rm_safe("compiler.cppstd")
        self.settings.rm_safe("compiler.libcxx")

    def validate(self):
        if str(self.settings.compiler) not in ("gcc", "clang"):
            raise ConanInvalidConfiguration("mlcore is compiled by gcc or clang")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["MLCORE_WITHOUT"] = str(self.options.without)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build(target="mlcore_impl")

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        copy(self, "mlcore.h", self.source_folder, os.path.join(self.package_folder, "include"))
        for pattern in ("*.a", "*.so*", "*.dll"):
            to = os.path.join(self.package_folder, "bin" if pattern == "*.dll" else "lib")
            copy(self, pattern, self.build_folder, to, keep_path=False)

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "mlcore")
        self.cpp_info.set_property("cmake_target_name", "mlcore::all")
        header = self.cpp_info.components["mlcore"]
        header.set_property("cmake_target_name", "mlcore::mlcore")
        header.set_property("pkg_config_name", "mlcore")
        header.libdirs = header.bindirs = []
        header.system_libs = ["m", "pthread"] if self.settings.os != "Windows" else []
        library = self.cpp_info.components["impl"]
        library.set_property("cmake_target_name", "mlcore::impl")
        library.set_property("pkg_config_name", "mlcore-lib")
        library.libs = ["mlcore_impl"]
        library.requires = ["mlcore"]
        for family in filter(None, str(self.options.without).split(";")):
            library.defines.append("MLC_MINIMAL" if family == "MINIMAL" else f"MLC_NO_{family}")
