#!/usr/bin/env python3
"""Writes tests/golden/metrics.safetensors: what scikit-learn says of small sets of predictions.

Needs numpy, safetensors and scikit-learn; run once from anywhere, the result is committed:
    python3 tests/golden/make_metrics_goldens.py
<group>.<case>.p, .t and, if weighted, .w are predictions, targets and weights; other names are those
of the values that the tests compare. Texts are u8. scikit-learn refuses NaN: this checks that.
"""
import pathlib
import warnings

import numpy as np
import sklearn
from safetensors.numpy import save_file
from sklearn import metrics as M

HERE = pathlib.Path(__file__).resolve().parent
BOOK = {}


def put(group, case, p, t, w=None, **values):
    at = f"{group}.{case}."
    BOOK[at + "p"] = np.array(p, order="C")                # safetensors takes no other order
    BOOK[at + "t"] = np.array(t, order="C")
    if w is not None:
        BOOK[at + "w"] = np.array(w, dtype=np.float64, order="C")
    for name, value in values.items():
        if isinstance(value, str):
            value = np.frombuffer(value.encode(), dtype=np.uint8)
        BOOK[at + name] = np.array(value, np.uint8 if name.startswith("report") else float,
                                   order="C")


def labels(case, p, t, classes, w=None, names=None):
    k = {"sample_weight": w}
    zero = k | {"zero_division": 0}
    v = {"accuracy": M.accuracy_score(t, p, **k),
         "balanced": M.balanced_accuracy_score(t, p, **k),
         "counts": M.confusion_matrix(t, p, labels=range(classes), **k),
         "report": M.classification_report(t, p, **zero),
         "report_digits": M.classification_report(t, p, digits=5, target_names=names, **zero)}
    for a in ("macro", "micro", "weighted") + (("binary",) if classes == 2 else ()):
        v["precision_" + a] = M.precision_score(t, p, average=a, **zero)
        v["recall_" + a] = M.recall_score(t, p, average=a, **zero)
        v["f1_" + a] = M.f1_score(t, p, average=a, **zero)
        v["f2_" + a] = M.fbeta_score(t, p, beta=2, average=a, **zero)
        v["f05_" + a] = M.fbeta_score(t, p, beta=0.5, average=a, **zero)
    each = M.precision_recall_fscore_support(t, p, labels=range(classes), **zero)
    put("labels", case, np.int64(p), np.int64(t), w, classes=classes, each=np.stack(each), **v)


def scores(case, p, t, w=None):
    c = p.shape[1]
    k = {"labels": range(c), "sample_weight": w}
    one_hot = np.eye(c, dtype=int)[t]
    v = {f"top{n}": M.top_k_accuracy_score(t, p, k=n, **k) for n in (1, 2, c - 1)}
    v["auc"] = np.mean([M.roc_auc_score(one_hot[:, i], p[:, i], sample_weight=w)
                        for i in range(c)])
    if len(set(t)) == c:
        proba = p / p.sum(1, keepdims=True)
        assert np.isclose(M.roc_auc_score(t, proba, multi_class="ovr", sample_weight=w),
                          np.mean([M.roc_auc_score(one_hot[:, i], proba[:, i], sample_weight=w)
                                   for i in range(c)]))
    v["average_precision"] = M.average_precision_score(one_hot, p, sample_weight=w)
    v["log_loss"] = M.log_loss(t, p, **k)
    wide = p.astype(np.float64)
    rows = np.log(np.exp(wide).sum(1)) - wide[np.arange(len(t)), t]
    v["perplexity"] = np.exp(np.average(rows, weights=w))
    put("scores", case, p, np.int64(t), w, **v)


def binary(case, p, t, w=None):
    k = {"sample_weight": w}
    v = {"auc": M.roc_auc_score(t, p, **k), "average_precision": M.average_precision_score(t, p, **k)}
    if p.min() >= 0 and p.max() <= 1:
        v["log_loss"] = M.log_loss(t, p, labels=[0, 1], **k)
    v["roc_x"], v["roc_y"], v["roc_t"] = M.roc_curve(t, p, pos_label=1, **k)
    v["pr_y"], v["pr_x"], v["pr_t"] = M.precision_recall_curve(t, p, pos_label=1, **k)
    put("binary", case, p, np.int64(t), w, **v)


def multi(case, p, t, w=None):
    put("multi", case, p, np.int64(t), w,
        average_precision=M.average_precision_score(t, p, sample_weight=w),
        auc=M.roc_auc_score(t, p, sample_weight=w))


def values(case, p, t, w=None):
    k = {"sample_weight": w}
    put("values", case, p, t, w, mse=M.mean_squared_error(t, p, **k),
        rmse=M.root_mean_squared_error(t, p, **k), mae=M.mean_absolute_error(t, p, **k),
        r2=M.r2_score(t, p, **k))


def refuses(f, *args):
    try:
        f(*args)
    except ValueError as e:
        assert "NaN" in str(e)
    else:
        raise AssertionError(f)


def main():
    warnings.simplefilter("ignore")
    r = np.random.default_rng(27)
    t = r.integers(0, 4, 60)
    p = np.where(r.random(60) < 0.6, t, r.integers(0, 4, 60))
    w = np.round(r.random(60) * 4 + 0.25, 2)
    names = ["cat", "dog", "a long name for a class", "\u00e9l\u00e9phant"]
    labels("plain", p, t, 4, names=names)
    labels("weights", p, t, 4, w, names=names)
    labels("whole_weights", p, t, 4, np.float64(r.integers(1, 4, 60)))
    labels("not_seen", p[:20] + 2, t[:20] + 2, 8)            # 0, 1, 6, 7 nowhere
    labels("only_predicted", np.where(t == 3, 2, p), np.where(t == 3, 1, t), 4)
    labels("never_predicted", np.where(p == 3, 0, p), t, 4)
    labels("one_class", np.zeros(9, int), np.zeros(9, int), 3)
    labels("never_right", (t + 1) % 4, t, 4)
    labels("binary", p % 2, t % 2, 2)
    labels("binary_none", np.zeros(20), t[:20] % 2, 2)
    labels("one_row", np.array([1]), np.array([1]), 2)
    labels("issue", np.array([0, 2, 1, 0, 0, 1, 2]), np.array([0, 1, 2, 0, 1, 2, 2]), 3)

    c = 5
    t = r.integers(0, c, 40)
    s = r.random((40, c)) + 0.5 * np.eye(c)[t]
    s /= s.sum(1, keepdims=True)
    w = np.round(r.random(40) * 3 + 0.1, 2)
    scores("plain", s, t)
    scores("weights", s, t, w)
    scores("f32", s.astype(np.float32), t)
    tied = np.round(s * 8) / 8 + 0.01
    scores("ties", tied / tied.sum(1, keepdims=True), t)
    scores("missing", s, np.where(t == 2, 1, t))
    sure = np.eye(c)[t].copy()
    sure[0] = np.roll(sure[0], 1)                          # certain and wrong
    scores("certain", sure, t)
    scores("certain_f32", sure.astype(np.float32), t)

    t = r.integers(0, 2, 50)
    s = np.clip(0.3 * r.standard_normal(50) + 0.35 + 0.3 * t, 0, 1)
    w = np.round(r.random(50) * 2 + 0.1, 2)
    binary("plain", s, t)
    binary("f32", s.astype(np.float32), t)
    binary("ties", np.round(s * 5) / 5, t)
    binary("ties_f32", (np.round(s * 5) / 5).astype(np.float32), t)
    binary("weights", s, t, w)
    binary("weights_ties", np.round(s * 5) / 5, t, w)
    binary("weights_zero", s, t, np.where(r.random(50) < 0.3, 0, w))
    binary("all_equal", np.full(7, 0.5), t[:7] | (np.arange(7) == 0))
    binary("perfect", np.float64(t), t)
    binary("no_positive", s, np.zeros(50))
    binary("no_negative", s, np.ones(50))
    binary("signs", np.array([-0.0, 0.0, -1.5, 2.5, -1e-300, 1e300, -1e300, 0.0]),
           np.array([0, 1, 0, 1, 1, 1, 0, 0]))
    binary("issue", np.array([.1, .5, .5, .5, .9, .5]), np.array([0, 1, 0, 1, 1, 0]))

    t = (r.random((30, 4)) < 0.4).astype(int)
    s = np.round(r.random((30, 4)) + 0.4 * t, 1)
    multi("plain", s, t)
    multi("weights", s, t, np.round(r.random(30) + 0.1, 2))
    t[:, 1] = 0
    multi("no_positive", s, t)

    t = r.standard_normal(45) * 3 + 100
    p = t + r.standard_normal(45)
    w = np.round(r.random(45) * 3, 2)
    values("plain", p, t)
    values("weights", p, t, w)
    values("f32", p.astype(np.float32), t.astype(np.float32))
    t2, p2 = t.reshape(15, 3), p.reshape(15, 3) * [1, 1, 0.9]
    values("outputs", p2, t2)
    values("outputs_weights", p2, t2, w[:15] + 0.1)
    values("constant", p, np.full(45, 2.0))
    values("constant_right", np.full(45, 2.0), np.full(45, 2.0))
    values("one_row", p[:1], t[:1])
    bad = p.copy()
    bad[3] = np.nan
    refuses(M.mean_squared_error, t, bad)
    refuses(M.roc_auc_score, np.arange(45) % 2, bad)
    refuses(M.average_precision_score, np.arange(45) % 2, bad)
    refuses(M.r2_score, t, bad)

    save_file(BOOK, HERE / "metrics.safetensors", metadata={
        "made_by": f"tests/golden/make_metrics_goldens.py, scikit-learn {sklearn.__version__}"})
    (HERE / "metrics.safetensors").chmod(0o644)
    print(len(BOOK), "tensors")


main()
