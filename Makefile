# mlcore: nothing has to be built to use mlcore.h; this runs its demo, tests, benches and checks.
# `make help` lists the targets. All paths are relative: the folder's name may have spaces.

CFLAGS     ?= -O2
PREFIX     ?= /usr/local
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR     ?= $(PREFIX)/lib
MANDIR     ?= $(PREFIX)/share/man
LIB_BLAS   := $(or $(BLAS),none)
BLAS       ?= auto
SAN        ?=
IMPL_FLAGS ?=
FILTER     ?=
ABUSE      ?=
CASE       ?=
JSON       ?=
PYTHON     ?= python3
REF        ?= HEAD
ISA        ?=

# Two objects at a time, unless -j says something else. What a make above this one says make 4.3 has in
# the environment alone while it reads this.
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS) $(shell printf '%s' "$$MAKEFLAGS")),)
  MAKEFLAGS += -j2
endif

VERSION := $(shell sed -n 's/^\#define MLC_VERSION_STRING "\(.*\)"/\1/p' mlcore.h)
WARN    := -Wall -Wextra

ifeq ($(SAN),)
  BUILD := build
else ifeq ($(SAN),thread)
  BUILD     := build-tsan
  SAN_FLAGS := -g -fno-omit-frame-pointer -fsanitize=thread
  FILTER    := $(or $(FILTER),threads)
else
  BUILD     := build-san
  SAN_FLAGS := -g -fno-omit-frame-pointer -fno-sanitize-recover=all \
               -fsanitize=address,undefined,float-cast-overflow
endif

# The implementation is two objects, which are compiled at the same time; PARTS=mlcore: one. A header
# of before MLC_PART, which tests/ab.sh may bring, has but one.
PARTS ?= $(if $(shell grep -l MLC_PART mlcore.h),kernels framework,mlcore)
IMPL  := $(PARTS:%=$(BUILD)/%.o)

# Flags that the user gave come last, so that they win.
COMPILE = $(CC) -std=c11 $(WARN) -I. $(SAN_FLAGS) $(CPPFLAGS) $(CFLAGS)
LIBS    = -lm -pthread

TEST_SOURCES := tests/main.c $(sort $(wildcard tests/device.c tests/test_*.c))
TEST_OBJECTS := $(TEST_SOURCES:tests/%.c=$(BUILD)/%.o)
TEST_HEADERS := mlcore.h $(wildcard tests/*.h tests/golden/*.h) examples/corpus.h

export CC CXX CPPFLAGS CFLAGS LDFLAGS BLAS IMPL
export MLC_BUILD_CONFIG := $(CC) $(CXX) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(IMPL_FLAGS) BLAS=$(BLAS) \
                           SAN=$(SAN) PARTS=$(PARTS)

.PHONY: help demo tasks demo-cnn demo-sketch demo-prune demo-quantize demo-table demo-gpt demo-tiny \
        demo-adapt demo-distill demo-export demo-mpi demo-forecast demo-compress demo-tune demo-serve \
        test test-cpp cuda cuda-host cuda-bugs cuda-test cuda-bench matrix io-faults \
        coverage fuzz abuse soak \
        bench bench-sketch bench-estimates bench-quant bench-compare bench-ab watch bits weight gate \
        lint map reference size embedded lib dist install uninstall clean FORCE
.DELETE_ON_ERROR:

help:
	@echo 'make demo            train a small network on handwritten digits; about a second'
	@echo 'make tasks           small programs, one a task, what they print, their lines beside PyTorch'"'s"
	@echo 'make demo-cnn        a convolutional one, with pictures of it; half a minute'
	@echo 'make demo-sketch     the same network dense and sketched, in a table; a minute'
	@echo 'make demo-tune       which layers of a trained network are sketched, by trials under a limit'
	@echo 'make demo-compress   a CNN and a GPT in three budgets of bytes, in a table; minutes; SEEDS=5'
	@echo 'make demo-prune      a network pruned in six ways, in a table; minutes; SEEDS=20'
	@echo 'make demo-distill    a CNN taught by one of eight times its size, in a table; SEEDS=20'
	@echo 'make demo-quantize   a CNN and an LSTM in integers of each kind, in a table; minutes; SEEDS=20'
	@echo 'make demo-export     a CNN trained, as C files in f32 and int8, compiled and run; seconds'
	@echo 'make demo-serve      a server over HTTP, and a client that checks it; SECONDS=5 HOSTILE=200'
	@echo 'make demo-mpi        one network trained by ranks of MPI, or threads; RANKS=2; seconds'
	@echo 'make demo-table      a table in a CSV file, its log and curves; a second'
	@echo 'make demo-gpt        a GPT that learns a book by bytes, and writes; two minutes'
	@echo 'make demo-tiny       a GPT trained plainly, and in 40 % of the bytes; a minute'
	@echo 'make demo-adapt      a GPT adapted to a second text in three ways, in a table; minutes'
	@echo 'make demo-forecast   networks forecast carbon dioxide, beside naive forecasts; a picture'
	@echo 'make embedded        the same on a Cortex-M4 in QEMU: flash, RAM, instructions'
	@echo 'make test            build and run all tests; FILTER=text runs some of them'
	@echo 'make test SAN=1      with the address and undefined-behaviour sanitizers'
	@echo 'make test SAN=thread the thread tests with the thread sanitizer'
	@echo 'make test-cpp        the tests of what is for C++ alone'
	@echo 'make cuda            mlcore_cuda.o and the digits for GPUs; NVCC= CUDA_SM="80 90 100"'
	@echo 'make cuda-test       the tests on a GPU, and under compute-sanitizer; FILTER=text'
	@echo "make cuda-bench      against PyTorch on the same GPU; CASE='mlp_*', PYTHON="
	@echo 'make cuda-host       the tests on the CUDA unit, its kernels run by the CPU; FILTER=text;'
	@echo '                     NOBORROW=1: with none of the kernels that it lacks'
	@echo 'make cuda-bugs       does tests/cuda_host find the bugs that are put into kernels? a minute'
	@echo 'make io-faults       reading and writing while calls of the system fail; GNU linker'
	@echo 'make coverage        the lines that no test runs, by section; needs gcovr'
	@echo "make bench           measure; CASE='mlp_*' some cases, JSON=file writes them"
	@echo 'make bench-sketch    what sketched layers cost and hold, as a picture; half a minute'
	@echo 'make bench-estimates memory estimates against what steps take; minutes, MOST=bytes'
	@echo 'make bench-quant     what quantized networks lose: digits, a small GPT; a quarter of an hour'
	@echo 'make bench-compare   against PyTorch; PYTHON=python3 names one that has torch'
	@echo "make bench-ab        against another commit: REF=commit, CASE='mlp_* gemm_*', ISA=avx2"
	@echo 'make watch           fails if a row is slower or larger than 1.1 times that of REF=commit;'
	@echo '                     COMMITS=20: each of the last commits against the one before, as a picture'
	@echo 'make bits            the same bits as REF=commit on each level? ISA=avx2 takes one'
	@echo 'make weight          compile seconds, bytes, largest functions; needs python3'
	@echo 'make gate            .ci/run in a fresh clone of HEAD; at most twenty minutes'
	@echo 'make fuzz            every reader, half a minute each; clang'
	@echo 'make soak            the same for an hour each, and the longest tests'
	@echo 'make abuse           every public function with arguments of all kinds, sanitized; minutes'
	@echo 'make matrix          what is tested of each operation; holes are errors; needs python3'
	@echo 'make lint            contents, banners, declarations and tests agree'
	@echo 'make reference       examples/API.md, and in build/reference a page with search and man pages'
	@echo 'make map             the sections of mlcore.h with their lines'
	@echo 'make size            bytes of code in small programs, against their budgets'
	@echo 'make lib             build/libmlcore.a and build/libmlcore.so; BLAS=auto: with a BLAS'
	@echo 'make dist            an archive of HEAD and the header alone, with their SHA256SUMS'
	@echo 'make install         mlcore.h and mlcore.pc, what make lib and make reference have made,'
	@echo '                     under PREFIX (and DESTDIR); uninstall'
	@echo 'make clean           remove what was built'
	@echo 'Taken from the command line: CC CXX CFLAGS CPPFLAGS LDFLAGS BLAS=none|auto,'
	@echo 'IMPL_FLAGS: more flags for the implementation alone; PARTS=mlcore: one object of it'

# ---- what was built with other flags is built again ------------------------------------------

$(BUILD)/config: FORCE
	@mkdir -p $(BUILD)
	@printf '%s\n' "$$MLC_BUILD_CONFIG" | cmp -s - $@ || printf '%s\n' "$$MLC_BUILD_CONFIG" >$@

$(BUILD)/blas: $(BUILD)/config FORCE
	@sh tests/blas.sh $(BUILD)

$(IMPL): $(BUILD)/%.o: mlcore.h $(BUILD)/config $(BUILD)/blas
	printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' | \
	    $(COMPILE) $(IMPL_FLAGS) $(if $(filter mlcore,$*),,-DMLC_PART=$*) \
	    `sed -n 1p $(BUILD)/blas` -x c -c -o $@ -

$(BUILD)/%.o: tests/%.c $(TEST_HEADERS) $(BUILD)/config $(BUILD)/blas
	$(COMPILE) `sed -n 1p $(BUILD)/blas` -c -o $@ $<

# An implementation of its own, for what is private: seconds, not minutes.
$(BUILD)/test_barrier.o: CFLAGS += -O0

# Has the vsnprintf for boards in it.
$(BUILD)/test_print.o: examples/embedded/vsnprintf.c examples/embedded/vsnprintf.h

$(BUILD)/tests: $(IMPL) $(TEST_OBJECTS)
	$(CC) $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ `sed -n 2p $(BUILD)/blas` $(LIBS)

# What is for C++ alone, as its oldest and newest language, and without exceptions.
$(BUILD)/test_cpp: tests/test_cpp.cpp $(IMPL)
	for flags in -std=c++20 '-std=c++17 -fno-exceptions' -std=c++11; do \
	    $(CXX) $$flags $(WARN) -Wpedantic -Wconversion -Wshadow -I. $(SAN_FLAGS) $(CPPFLAGS) \
	        $(LDFLAGS) -o $@ $^ `sed -n 2p $(BUILD)/blas` $(LIBS) && $@ || exit; done

# The CUDA unit for each architecture that this nvcc knows, and PTX of the last one.
NVCC      ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
CUDA_SM   ?= 80 90 100
CUDA_HAS  = $(shell $(NVCC) --list-gpu-arch 2>/dev/null | sed 's/compute_//')
CUDA_ARCH = $(filter $(CUDA_HAS),$(CUDA_SM))
CUDA_GEN  = $(foreach sm,$(CUDA_ARCH),-gencode arch=compute_$(sm),code=sm_$(sm)) \
            $(foreach sm,$(lastword $(CUDA_ARCH)),-gencode arch=compute_$(sm),code=compute_$(sm))
$(BUILD)/cuda/mlcore_cuda.o: mlcore_cuda.cu mlcore_cuda.h mlcore.h
	@mkdir -p $(BUILD)/cuda
	$(NVCC) -std=c++17 -O3 -ftz=true --Werror all-warnings --threads 2 $(CUDA_GEN) $(NVCC_FLAGS) \
	    -c -o $@ $<

# What runs on a GPU is linked with the toolkit's libraries that nvcc belongs to: in lib64, or, where
# wheels of Python's brought it, in lib, with names that end in a version alone.
comma    := ,
CUDA_TOP  = $(abspath $(dir $(shell command -v $(NVCC)))/..)
CUDA_SO   = $(or $(firstword $(foreach dir,lib64 lib targets/x86_64-linux/lib,\
                $(wildcard $(CUDA_TOP)/$(dir)/lib$1.so $(CUDA_TOP)/$(dir)/lib$1.so.*))),-l$1)
CUDA_LIBS = $(call CUDA_SO,cublasLt) $(call CUDA_SO,cudart)
CUDA_LINK = $(CXX) $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(CUDA_LIBS) \
            $(addprefix -Wl$(comma)-rpath$(comma),$(sort $(dir $(filter /%,$(CUDA_LIBS))))) \
            `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/digits_cuda.o: examples/digits.c examples/options.h mlcore.h mlcore_cuda.h $(BUILD)/config
	$(COMPILE) -DDIGITS_CUDA -c -o $@ $<

$(BUILD)/cuda/digits: $(BUILD)/digits_cuda.o $(IMPL) $(BUILD)/cuda/mlcore_cuda.o
	$(CUDA_LINK)

# The suite with nothing borrowed: tests are skipped where they need an entry that the unit has not.
$(BUILD)/cuda/borrow.o: tests/cuda_host/borrow.cpp mlcore_cuda.h mlcore.h $(BUILD)/config
	@mkdir -p $(BUILD)/cuda
	$(NVCC) -std=c++17 -O1 -DBORROW_CARD -c -o $@ $<

BENCH_SOURCES := bench/bench.c $(wildcard bench/*.h) tests/ew_table.h tests/resnet20.h
$(BUILD)/cuda/bench.o: $(BENCH_SOURCES) mlcore.h mlcore_cuda.h $(BUILD)/config
	@mkdir -p $(BUILD)/cuda
	$(COMPILE) -DBENCH_CUDA -DBENCH_FLAGS='"$(CC) $(CFLAGS)"' -c -o $@ bench/bench.c

$(BUILD)/cuda/bench: $(BUILD)/cuda/bench.o $(IMPL) $(BUILD)/cuda/mlcore_cuda.o
	$(CUDA_LINK)

# The CUDA unit as a C++ program over tests/cuda_host, with the whole suite.
CUDA_HOST = $(CXX) -std=c++17 -ffp-contract=off $(WARN) -Wno-unknown-pragmas -Wno-attributes \
            -Itests/cuda_host -I. $(SAN_FLAGS) $(CPPFLAGS) $(CFLAGS)
$(BUILD)/mlcore_cuda.o: mlcore_cuda.cu mlcore_cuda.h mlcore.h $(wildcard tests/cuda_host/*.h) \
                        $(BUILD)/config
	$(CUDA_HOST) -x c++ -c -o $@ $<

$(BUILD)/borrow.o: tests/cuda_host/borrow.cpp mlcore_cuda.h mlcore.h \
                   $(wildcard tests/cuda_host/*.h) $(BUILD)/config
	$(CUDA_HOST) -c -o $@ $<

CUDA_TESTS := $(sort $(wildcard tests/cuda_host/test_*.c))
CUDA_CPP_TESTS := $(sort $(wildcard tests/cuda_host/test_*.cpp))
$(BUILD)/cuda_%.o: tests/cuda_host/%.c $(TEST_HEADERS) $(BUILD)/config
	$(COMPILE) -Itests -c -o $@ $<

$(BUILD)/cuda_%.o: tests/cuda_host/%.cpp mlcore_cuda.h $(wildcard tests/cuda_host/*.h) \
                   $(TEST_HEADERS) $(BUILD)/config
	$(CUDA_HOST) -c -o $@ $<

$(BUILD)/tests-cuda: $(IMPL) $(TEST_OBJECTS) $(BUILD)/mlcore_cuda.o $(BUILD)/borrow.o \
                     $(CUDA_TESTS:tests/cuda_host/%.c=$(BUILD)/cuda_%.o) \
                     $(CUDA_CPP_TESTS:tests/cuda_host/%.cpp=$(BUILD)/cuda_%.o)
	$(CXX) $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/cuda/tests: $(IMPL) $(TEST_OBJECTS) $(BUILD)/cuda/mlcore_cuda.o \
                     $(BUILD)/cuda/borrow.o $(CUDA_TESTS:tests/cuda_host/%.c=$(BUILD)/cuda_%.o)
	$(CUDA_LINK) -Wl,--wrap=cublasLtMatmul

$(BUILD)/digits_cuda: $(BUILD)/digits_cuda.o $(IMPL) $(BUILD)/mlcore_cuda.o \
                      $(BUILD)/borrow.o
	$(CXX) $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $^ `sed -n 2p $(BUILD)/blas` $(LIBS)

# The calls of the system that it makes fail go through tests/faults/.
FAULTS := open fstat stat read write lseek mmap munmap flock dup fsync fchown close rename unlink \
          pthread_create

$(BUILD)/io_faults: $(wildcard tests/faults/*.c) $(BUILD)/main.o $(BUILD)/device.o \
                    $(IMPL) $(TEST_HEADERS)
	$(COMPILE) $(LDFLAGS) $(FAULTS:%=-Wl,--wrap=%) -o $@ $(filter %.c %.o,$^) \
	    `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/bench: $(BENCH_SOURCES) $(IMPL)
	$(COMPILE) -DBENCH_FLAGS='"$(CC) $(CFLAGS)"' $(LDFLAGS) -o $@ bench/bench.c \
	    $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/landscape $(BUILD)/estimates $(BUILD)/quant_loss $(BUILD)/linalg_speed \
$(BUILD)/profile_cost $(BUILD)/serve_speed \
$(BUILD)/tune_speed: $(BUILD)/%: bench/%.c tests/resnet20.h examples/corpus.h examples/digits.h \
                     $(IMPL)
	$(COMPILE) $(LDFLAGS) -o $@ $< $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)

# Beside the readers of other libraries, those of which pkg-config knows.
IMAGE_FLAGS = $(foreach l,png jpeg,$(shell pkg-config --exists lib$l 2>/dev/null && \
                  { echo -DHAVE_$l; pkg-config --cflags --libs lib$l; }))
$(BUILD)/image_speed: bench/image_speed.c $(IMPL)
	$(COMPILE) $(LDFLAGS) -o $@ $< $(IMPL) $(IMAGE_FLAGS) `sed -n 2p $(BUILD)/blas` $(LIBS)

EXAMPLES := $(BUILD)/digits $(BUILD)/digits_cnn $(BUILD)/sketch_digits $(BUILD)/load_torch \
            $(BUILD)/hooks $(BUILD)/tabular $(BUILD)/fit $(BUILD)/char_gpt \
            $(BUILD)/forecast $(BUILD)/tiny_budget $(BUILD)/prune_digits $(BUILD)/quantize_digits \
            $(BUILD)/distill_digits $(BUILD)/adapt_gpt $(BUILD)/onnx_run $(BUILD)/export_digits \
            $(BUILD)/serve $(BUILD)/digits_mpi $(BUILD)/sketch_compress \
            $(BUILD)/tune
$(EXAMPLES): $(BUILD)/%: examples/%.c examples/options.h examples/corpus.h examples/digits.h $(IMPL)
	$(COMPILE) $(LDFLAGS) -o $@ $< $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/serve: $(wildcard examples/serve_*.h) examples/http.h examples/json.h examples/kserve.h

# The programs by task; they include mlcore.h by -I.
TASKS     := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/tasks/*.c))
TASKS_CPP := $(patsubst examples/%.cpp,$(BUILD)/%,$(wildcard examples/tasks/*.cpp))
$(TASKS): $(BUILD)/%: examples/%.c $(IMPL)
	@mkdir -p $(BUILD)/tasks
	$(COMPILE) -Werror $(LDFLAGS) -o $@ $< $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)
$(TASKS_CPP): $(BUILD)/%: examples/%.cpp $(IMPL)
	@mkdir -p $(BUILD)/tasks
	$(CXX) -std=c++11 $(WARN) -Werror -I. $(SAN_FLAGS) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< \
	    $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)

# The implementation as libraries: the same two objects in both. gcc inlines public functions, too, and
# calls within the library go straight to them. The shared one exports public functions alone, by the
# minor version, which may change the API. Programs of the static one leave out what they do not call
# by -Wl,--gc-sections. They need no BLAS of the machine that they are made on, unless BLAS=auto is given.
MINOR       := $(basename $(VERSION))
LIB_SHARED  := $(BUILD)/libmlcore.so.$(VERSION)
LIB_OBJECTS := $(BUILD)/lib/kernels.o $(BUILD)/lib/framework.o
$(BUILD)/lib/blas: $(BUILD)/config FORCE
	@mkdir -p $(BUILD)/lib
	@BLAS='$(LIB_BLAS)' sh tests/blas.sh $(BUILD)/lib

$(LIB_OBJECTS): $(BUILD)/lib/%.o: mlcore.h $(BUILD)/config $(BUILD)/lib/blas
	printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' | \
	    $(COMPILE) -fPIC -fno-semantic-interposition -ffunction-sections -fdata-sections \
	    $(IMPL_FLAGS) -DMLC_PART=$* \
	    `sed -n 1p $(BUILD)/lib/blas` -x c -c -o $@ -

$(BUILD)/libmlcore.a: $(LIB_OBJECTS)
	rm -f $@
	$(AR) rcs $@ $^

$(LIB_SHARED): $(LIB_OBJECTS)
	printf 'MLCORE_$(MINOR) {\n    global: mlc_[a-z]*;\n    local: *;\n};\n' >$(BUILD)/lib/exports
	$(CC) -shared $(SAN_FLAGS) $(CFLAGS) $(LDFLAGS) -Wl,-soname,libmlcore.so.$(MINOR) \
	    -Wl,-Bsymbolic-functions -Wl,--version-script,$(BUILD)/lib/exports -o $@ $^ \
	    `sed -n 2p $(BUILD)/lib/blas` $(LIBS)
	ln -sf $(@F) $(BUILD)/libmlcore.so.$(MINOR)
	ln -sf $(@F) $(BUILD)/libmlcore.so

SIZE_OBJECTS := $(patsubst %,$(BUILD)/size_%.o,all f32 kernels framework)
$(BUILD)/size_f32.o: SIZE_FLAGS = -DMLC_ONLY_F32
$(BUILD)/size_kernels.o: SIZE_FLAGS = -DMLC_PART=kernels
$(BUILD)/size_framework.o: SIZE_FLAGS = -DMLC_PART=framework
$(SIZE_OBJECTS): mlcore.h $(BUILD)/config
	printf '#define MLCORE_IMPLEMENTATION\n#include "mlcore.h"\n' | \
	    $(CC) -std=c11 -I. -Os -ffunction-sections -fdata-sections -DMLC_NO_SIMD \
	    -DMLC_NO_THREADS $(SIZE_FLAGS) -x c -c -o $@ -

# ---- targets -----------------------------------------------------------------------------------

demo: $(BUILD)/digits
	@$(BUILD)/digits

# WRITE=1: what they print is written anew, after a change that is meant.
# The C++ one where there is a compiler of C++.
tasks: $(TASKS) $(if $(shell command -v $(CXX)),$(TASKS_CPP))
	@SAN_FLAGS='$(SAN_FLAGS)' bash tests/tasks.sh $(BUILD)/tasks '$(WRITE)'

demo-cnn: $(BUILD)/digits_cnn
	@$(BUILD)/digits_cnn

demo-sketch: $(BUILD)/sketch_digits
	@$(BUILD)/sketch_digits

demo-compress: $(BUILD)/sketch_compress
	@$(BUILD)/sketch_compress $(SEEDS:%=--seeds %)

demo-tune: $(BUILD)/tune
	@$(BUILD)/tune

demo-prune: $(BUILD)/prune_digits
	@$(BUILD)/prune_digits $(SEEDS:%=--seeds %)

demo-distill: $(BUILD)/distill_digits
	@$(BUILD)/distill_digits $(SEEDS:%=--seeds %)

demo-quantize: $(BUILD)/quantize_digits
	@$(BUILD)/quantize_digits $(SEEDS:%=--seeds %)

demo-export: $(BUILD)/export_digits
	@$(BUILD)/export_digits --out $(BUILD)

demo-serve: $(BUILD)/serve
	@$(PYTHON) tests/serve_client.py $(BUILD)/serve $(BUILD)/served --seconds $(or $(SECONDS),5) \
	    --hostile $(or $(HOSTILE),200)

# By MPI where mpicc is, RANKS=N of them; else threads.
demo-mpi: $(BUILD)/digits_mpi
	@bash tests/mpi.sh $(BUILD) $(or $(RANKS),2)

demo-table: $(BUILD)/tabular
	@$(BUILD)/tabular

demo-gpt: $(BUILD)/char_gpt
	@$(BUILD)/char_gpt

demo-adapt: $(BUILD)/adapt_gpt
	@$(BUILD)/adapt_gpt

demo-tiny: $(BUILD)/tiny_budget
	@$(BUILD)/tiny_budget

demo-forecast: $(BUILD)/forecast
	@$(BUILD)/forecast

# The kernels of the CUDA unit are tested with all others, by a C++ compiler and where fibers.h runs.
HAS_FIBERS := $(and $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(shell command -v $(CXX)))
test: $(BUILD)/tests $(if $(SAN)$(FILTER),,$(if $(HAS_FIBERS),$(BUILD)/tests-cuda))
	@sh tests/run.sh $(BUILD) '$(SAN)' '$(FILTER)'

cuda: $(BUILD)/cuda/mlcore_cuda.o $(BUILD)/cuda/digits
	@echo '$<: link it with -lcublasLt -lcudart; $(BUILD)/cuda/digits --device cuda'

# All memory is the card's, none of it managed: see borrow.cpp. compute-sanitizer is slow: FILTER is
# of the suite alone.
CUDA_SANITIZE ?= $(firstword $(wildcard $(dir $(NVCC))compute-sanitizer) compute-sanitizer)
cuda-test: $(BUILD)/cuda/tests $(BUILD)/cuda/digits
	MLC_TEST_DEVICE=cuda MLC_TEST_BRIEF=1 $(BUILD)/cuda/tests \
	    --filter '$(FILTER)'
	$(BUILD)/cuda/digits --device cuda --seeds 1 --out $(BUILD)/cuda/digits.safetensors
	for tool in memcheck racecheck synccheck initcheck; do \
	    MLC_TEST_DEVICE=cuda $(CUDA_SANITIZE) --tool $$tool --error-exitcode 1 \
	        $(BUILD)/cuda/tests --filter cuda. || exit; done

# NOBORROW=1: as on a card.
cuda-host: $(BUILD)/tests-cuda
	@MLC_TEST_DEVICE=cuda CUDA_HOST_NOBORROW=$(NOBORROW) $(BUILD)/tests-cuda --filter '$(FILTER)'

# Tests of the tester, which builds its programs with sanitizers of its own.
cuda-bugs:
	@mkdir -p $(BUILD)
	@bash tests/cuda_host/bugs.sh $(BUILD)

test-cpp: $(BUILD)/test_cpp
	@$(BUILD)/test_cpp

io-faults: $(BUILD)/io_faults
	@MLC_TEST_DEVICE= $(BUILD)/io_faults --filter iofaults
	@MLC_TEST_DEVICE=test $(BUILD)/io_faults --filter iofaults

matrix: $(BUILD)/tests
	@$(PYTHON) tests/matrix.py $(BUILD)/tests

fuzz:
	@tests/fuzz/run.sh 30

# Each public function with extreme, empty, aliased and ended arguments: see tests/abuse/generate.py.
# ABUSE='--only mlc_conv --cases 5000'
$(BUILD)/abuse.c: tests/abuse/generate.py mlcore.h
	@mkdir -p $(BUILD)
	$(PYTHON) $< mlcore.h >$@

$(BUILD)/abuse: $(BUILD)/abuse.c tests/abuse/abuse.h $(IMPL)
	$(COMPILE) -Itests/abuse $(LDFLAGS) -o $@ $(BUILD)/abuse.c $(IMPL) \
	    `sed -n 2p $(BUILD)/blas` $(LIBS)

abuse:
	@$(MAKE) --no-print-directory build-san/abuse SAN=1 BLAS=none CFLAGS='-O1 -g1' \
	    CPPFLAGS=-DMLC_NO_AVX512
	@build-san/abuse $(ABUSE)

soak: $(BUILD)/tests
	@MLC_TEST_SOAK=1 sh tests/run.sh $(BUILD) '$(SAN)' soak
	@tests/fuzz/run.sh 3600

coverage:
	@bash tests/coverage.sh

bench: $(BUILD)/bench
	@$(BUILD)/bench $(if $(CASE),--case '$(CASE)') $(if $(JSON),--json '$(JSON)')

bench-sketch: $(BUILD)/landscape
	@$(BUILD)/landscape bench/sketch_landscape.svg

bench-estimates: $(BUILD)/estimates
	@$(BUILD)/estimates $(if $(MOST),--most '$(MOST)')

bench-quant: $(BUILD)/quant_loss
	@$(BUILD)/quant_loss

bench-compare: $(BUILD)/bench
	@$(PYTHON) bench/compare.py $(if $(CASE),--case '$(CASE)') $(if $(JSON),--json '$(JSON)')

cuda-bench: $(BUILD)/cuda/bench
	@$(PYTHON) bench/compare.py --device cuda --bench $(BUILD)/cuda/bench \
	    $(if $(CASE),--case '$(CASE)') $(if $(JSON),--json '$(JSON)')

# Against another commit, both built here: the same bits, and times in turns.
bits:
	@bash tests/bits.sh '$(REF)' $(ISA)

bench-ab:
	@$(PYTHON) bench/ab.py --ref '$(REF)' $(if $(CASE),--case '$(CASE)') $(if $(ISA),--isa $(ISA))

# What has become slower: fails, as no other target does on times.
watch:
	@$(PYTHON) bench/watch.py $(if $(REF),--ref '$(REF)') $(if $(COMMITS),--commits $(COMMITS)) \
	    $(if $(CASE),--case '$(CASE)') $(if $(ISA),--isa $(ISA))

weight:
	@$(PYTHON) tests/weight.py

# .ci/run in a fresh clone of HEAD; if it is green, HEAD's hash is written to the git folder.
gate:
	@bash tests/gate.sh

lint:
	@sh tests/lint.sh

map:
	@awk '/^\/\* @@ /{if(n)printf "%6d-%-6d %5d  %s\n",s,NR-1,NR-s,n; n=$$3; s=NR} \
	     END{printf "%6d-%-6d %5d  %s\n",s,NR,NR-s+1,n}' mlcore.h

# For man -M build/reference/man mlc_add.
reference:
	@rm -rf build/reference
	$(PYTHON) tests/reference.py build/reference

size: $(SIZE_OBJECTS)
	@sh tests/size.sh $(BUILD)

# The host's part writes what the board has in flash.
$(BUILD)/flash: examples/embedded/flash.c $(IMPL)
	$(COMPILE) $(LDFLAGS) -o $@ $^ `sed -n 2p $(BUILD)/blas` $(LIBS)

$(BUILD)/export_tiny: examples/embedded/export.c examples/embedded/tiny.h $(IMPL)
	$(COMPILE) $(LDFLAGS) -o $@ $< $(IMPL) `sed -n 2p $(BUILD)/blas` $(LIBS)

embedded: $(BUILD)/flash $(BUILD)/export_tiny
	@sh examples/embedded/run.sh $(BUILD)

lib: $(BUILD)/libmlcore.a $(LIB_SHARED)

# What HEAD has: the same bytes whoever makes it, whenever.
DIST       := mlcore-$(VERSION)
DIST_FILES := mlcore.h mlcore_cuda.cu mlcore_cuda.h CMakeLists.txt LICENSE README.md \
              examples/CHANGES.md examples/tasks/xor.c
dist:
	@git diff --quiet HEAD -- $(DIST_FILES) || \
	    { echo 'make dist: files of the archive have changes: commit them first'; exit 1; }
	@mkdir -p $(BUILD) && rm -rf $(BUILD)/$(DIST)
	git -c tar.umask=022 archive --format=tar --prefix=$(DIST)/ HEAD $(DIST_FILES) >$(BUILD)/$(DIST).tar
	tar -xf $(BUILD)/$(DIST).tar -C $(BUILD)
	gzip -9nf $(BUILD)/$(DIST).tar
	cp $(BUILD)/$(DIST)/mlcore.h $(BUILD)/$(DIST).h
	cd $(BUILD) && sha256sum $(DIST).h $(DIST).tar.gz >SHA256SUMS && cat SHA256SUMS

# pkg-config's files, in one folder: mlcore for programs that compile the implementation, mlcore-lib for
# the library.
install:
	@[ ! -e $(BUILD)/libmlcore.a ] || [ -z "$$(find mlcore.h -newer $(BUILD)/libmlcore.a)" ] || \
	    { echo 'make install: mlcore.h is newer than $(BUILD)/libmlcore.a: make lib first'; exit 1; }
	mkdir -p '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig'
	cp mlcore.h '$(DESTDIR)$(INCLUDEDIR)/mlcore.h'
	printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$(INCLUDEDIR)' '' 'Name: mlcore' \
	    'Description: trains neural networks in plain C, one header' 'Version: $(VERSION)' \
	    'Cflags: -I"$${includedir}"' 'Libs: -lm -pthread' \
	    >'$(DESTDIR)$(LIBDIR)/pkgconfig/mlcore.pc'
	[ ! -e $(LIB_SHARED) ] || { \
	    cp $(BUILD)/libmlcore.a $(LIB_SHARED) '$(DESTDIR)$(LIBDIR)' && \
	    ln -sf libmlcore.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libmlcore.so.$(MINOR)' && \
	    ln -sf libmlcore.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libmlcore.so' && \
	    printf '%s\n' 'libdir=$(LIBDIR)' '' 'Name: mlcore-lib' \
	        'Description: the implementation of mlcore as a library' 'Version: $(VERSION)' \
	        'Requires: mlcore = $(VERSION)' 'Libs: -L"$${libdir}" -lmlcore' \
	        "Libs.private: $$(sed -n 2p $(BUILD)/lib/blas) -lm -pthread" \
	        >'$(DESTDIR)$(LIBDIR)/pkgconfig/mlcore-lib.pc'; }
	for n in 3 7; do [ ! -d build/reference/man/man$$n ] || \
	    { mkdir -p '$(DESTDIR)$(MANDIR)'/man$$n && \
	      cp build/reference/man/man$$n/* '$(DESTDIR)$(MANDIR)'/man$$n; } || exit; done

uninstall:
	rm -f '$(DESTDIR)$(INCLUDEDIR)/mlcore.h' \
	    $(patsubst %,'$(DESTDIR)$(LIBDIR)/pkgconfig/%.pc',mlcore mlcore-lib) \
	    $(patsubst %,'$(DESTDIR)$(LIBDIR)/libmlcore.%',a so so.$(MINOR) so.$(VERSION)) \
	    '$(DESTDIR)$(MANDIR)'/man3/mlc_*.3 '$(DESTDIR)$(MANDIR)/man7/mlcore.7'

clean:
	rm -rf build build-san build-tsan build-ci build-fuzz build-coverage
