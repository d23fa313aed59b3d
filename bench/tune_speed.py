"""Runs mlcore's tuner and Optuna's TPE on the same 20 landscapes with noise.

    make build/tune_speed && python3 bench/tune_speed.py build/tune_speed [--trials 100] [--seeds 20]
A search ends with the trial that measured best; its true value counts. For each landscape the values
of all searches of both are ranked together, 1 the best: the table has the median rank and the median
value of each. Both have their defaults.
"""
import argparse
import statistics
import subprocess
import time

import optuna


def ranks(values):
    """Ranks from 1, the mean of them for equal values."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    out = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in range(at, end):
            out[order[i]] = (at + 1 + end) / 2
        at = end
    return out


def suggest(trial, space):
    """Values of one trial of Optuna's."""
    values = []
    for i, (kind, even, low, high) in enumerate(space):
        name = f"p{i}"
        if kind == 0:
            values.append(trial.suggest_float(name, low, high, log=even))
        elif kind == 1:
            values.append(trial.suggest_int(name, int(low), int(high), log=even))
        else:
            values.append(trial.suggest_categorical(name, list(range(int(high) + 1))))
    return values


def theirs(at, seed, space, trials, pipe):
    """The true value of the best trial of a search by Optuna."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    best = None
    for number in range(trials):
        trial = study.ask()
        values = suggest(trial, space)
        pipe.stdin.write(f"{at} {seed} {number} " + " ".join(f"{v:.17g}" for v in values) + "\n")
        pipe.stdin.flush()
        measured, true = map(float, pipe.stdout.readline().split())
        study.tell(trial, measured)
        if best is None or measured < best[0]:
            best = (measured, true)
    return best[1]


def main():
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def output(*words):
        return subprocess.run([args.program, *map(str, words)], capture_output=True, text=True,
                              check=True).stdout.splitlines()

    names, spaces = [], []
    for line in output("spaces"):
        name, *params = line.split("|")
        names.append(name)
        spaces.append([(int(k), e == "1", float(lo), float(hi))
                       for k, e, lo, hi in (p.split() for p in params)])
    start = time.perf_counter()
    ours = {(int(a), int(s)): float(v)
            for a, s, v in (line.split() for line in output("ours", args.trials, args.seeds))}
    ours_time = time.perf_counter() - start
    print(f"{'landscape':<14} {'rank':>6} {'Optuna':>7} {'value':>10} {'Optuna':>10}")
    all_ranks = ([], [])
    start = time.perf_counter()
    with subprocess.Popen([args.program, "values"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as pipe:
        for at, name in enumerate(names):
            mine = [ours[at, s] for s in range(args.seeds)]
            other = [theirs(at, s, spaces[at], args.trials, pipe) for s in range(args.seeds)]
            r = ranks(mine + other)
            pair = statistics.median(r[:args.seeds]), statistics.median(r[args.seeds:])
            for k in range(2):
                all_ranks[k].append(pair[k])
            print(f"{name:<14} {pair[0]:>6.1f} {pair[1]:>7.1f} {statistics.median(mine):>10.4f} "
                  f"{statistics.median(other):>10.4f}", flush=True)
        pipe.stdin.close()
    theirs_time = time.perf_counter() - start
    better = sum(a < b for a, b in zip(*all_ranks))
    worse = sum(a > b for a, b in zip(*all_ranks))
    print(f"{'median':<14} {statistics.median(all_ranks[0]):>6.1f} "
          f"{statistics.median(all_ranks[1]):>7.1f}   better on {better}, worse on {worse}")
    print(f"optuna {optuna.__version__}, {args.trials} trials, {args.seeds} seeds; "
          f"{ours_time:.1f} s, {theirs_time:.1f} s")


if __name__ == "__main__":
    main()
