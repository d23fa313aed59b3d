# kernels.awk -- the kernels of mlcore_cuda.cu in what nvcc --resource-usage says, demangled:
# how often each is compiled, the registers, bytes of spills and of shared memory.
/Compiling entry function/ {
    line = $0
    sub(/.*Compiling entry function '(void )?/, "", line)
    match(line, /^[a-z0-9_]+/)
    name = substr(line, 1, RLENGTH)
}
/bytes spill stores/ && name { spill = $5 + $9 }
/Used [0-9]+ registers/ && name {
    for (i = 1; i < NF; i++) if ($i == "Used") regs = $(i + 1) + 0
    shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
    if (!(name in count) || regs < least[name]) least[name] = regs
    if (regs > most[name]) most[name] = regs
    if (spill > spills[name]) spills[name] = spill
    if (shared > smem[name]) smem[name] = shared
    count[name]++
    name = ""
}
END {
    printf "%-26s %5s %9s %6s %7s\n", "kernel", "times", "registers", "spills", "shared"
    fflush()
    for (name in count) {
        range = least[name] == most[name] ? most[name] : least[name] "-" most[name]
        printf "%-26s %5d %9s %6d %7d\n", name, count[name], range, spills[name], smem[name] | "sort"
    }
}
