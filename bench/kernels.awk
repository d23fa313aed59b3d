# kernels.awk -- the kernels of mlcore_cuda.cu in what nvcc --resource-usage says, demangled: how
# often each is compiled, the registers, bytes of spills, stack and shared memory. What spills is an
# error, and so is a stack; but -v stacks=FILE has lines "kernel stack spills" of what may be: of a
# name, or of one with its types.
BEGIN {
    while (stacks && (getline line < stacks) > 0)
        if (line !~ /^#/ && split(line, part, " ") == 3) {
            may_stack[part[1]] = part[2]
            may_spill[part[1]] = part[3]
        }
}
/Compiling entry function/ {
    kernel = $0
    sub(/.*Compiling entry function '(void )?/, "", kernel)
    sub(/\(.*/, "", kernel)
    name = kernel
    sub(/<.*/, "", name)
}
/bytes stack frame/ && name {           # of the kernel, and of functions that it calls
    key = kernel in may_stack ? kernel : name
    spilt = $5 + $9
    if ($1 > stack[name]) stack[name] = $1
    if (spilt > spills[name]) spills[name] = spilt
    if (spilt > may_spill[key] + 0) errors = errors "error: " kernel " spills " spilt " bytes\n"
    if ($1 > may_stack[key] + 0) errors = errors "error: " kernel " has a stack of " $1 " bytes\n"
}
/Used [0-9]+ registers/ && name {
    for (i = 1; i < NF; i++) if ($i == "Used") regs = $(i + 1) + 0
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
    if (!(name in count) || regs < least[name]) least[name] = regs
    if (regs > most[name]) most[name] = regs
    if (shared > smem[name]) smem[name] = shared
    count[name]++
    total++
    name = ""
}
END {
    printf "%-26s %5s %9s %6s %6s %7s\n", "kernel", "times", "registers", "spills", "stack", "shared"
    fflush()
    for (name in count) {
        range = least[name] == most[name] ? most[name] : least[name] "-" most[name]
        printf "%-26s %5d %9s %6d %6d %7d\n", name, count[name], range, spills[name], stack[name],
               smem[name] | "sort"
    }
    close("sort")
    printf "%s%d kernels\n", errors, total
    exit errors != "" || !total
}
