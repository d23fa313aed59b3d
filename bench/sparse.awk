# sparse.awk -- of what build/bench --case 'infer_sparse_*' prints: the time of a product that skips
# zeros over that of the dense one, by form, size, rows of x and percent of zeros, and the percent from
# which it is faster, on a line between two measured ones.
/^infer_sparse_/ && match($0, /of dense [0-9.]+/) {
    time = substr($0, RSTART + 9, RLENGTH - 9) + 0
    split($1, part, "_")
    zeros = part[6] + 0
    row = sprintf("| %s %s | %s | %s |", $2, part[3], part[4], substr(part[7], 2))
    if (!(row in cells)) order[++n] = row
    cells[row] = cells[row] sprintf(" %.2f |", time)
    if (time >= 1) from[row] = "over " zeros
    else if (!(row in from)) from[row] = "under " zeros
    else if (before[row] >= 1) {
        slope = (before[row] - time) / (zeros - last[row])
        from[row] = sprintf("%.0f", last[row] + (before[row] - 1) / slope)
    }
    before[row] = time
    last[row] = zeros
}
END {
    print "| form | in | rows | 50 % | 60 % | 70 % | 80 % | 90 % | 95 % | 98 % | faster from |"
    print "|---|---|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= n; i++) print order[i] cells[order[i]] " " from[order[i]] " % |"
}
