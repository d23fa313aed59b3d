/* calibrate.c -- a fixed piece of C whose compile time is the unit of tests/weight.py
 *
 * It has loops that vectorise, a switch of formulas, branches and calls, forty times over, and
 * includes nothing: what it costs depends on the compiler and the machine alone. It is never
 * changed, or all stored budgets have to be measured again.
 */
#define PIECE(n) \
    float calibrate_formula_##n(int op, float *o, const float *x, const float *y, int count); \
    struct calibrate_##n; \
    long calibrate_shape_##n(struct calibrate_##n *list, const char *name, long *strides); \
    void calibrate_sort_##n(double *v, int count, int (*less)(double, double)); \
    float calibrate_formula_##n(int op, float *o, const float *x, const float *y, int count) \
    { \
        float sum = 0; \
        switch (op) { \
            case 0: for (int i = 0; i < count; i++) o[i] = x[i] + y[i]; break; \
            case 1: for (int i = 0; i < count; i++) o[i] = x[i] * y[i] + (float)n; break; \
            case 2: for (int i = 0; i < count; i++) o[i] = x[i] > 0 ? x[i] : y[i]; break; \
            case 3: for (int i = 0; i < count; i++) o[i] = x[i] / (1.0f + y[i] * y[i]); break; \
            case 4: for (int i = 0; i < count; i++) sum += x[i] * y[i]; break; \
            default: for (int i = 0; i < count; i++) o[i] = o[count - 1 - i] - x[i]; \
        } \
        return sum; \
    } \
    struct calibrate_##n { \
        struct calibrate_##n *next; const char *name; long size[8]; int rank; \
    }; \
    long calibrate_shape_##n(struct calibrate_##n *list, const char *name, long *strides) \
    { \
        long total = 1, step = n; \
        for (; list; list = list->next) { \
            const char *a = list->name, *b = name; \
            while (*a && *a == *b) { a++; b++; } \
            if (*a != *b) continue; \
            for (int d = list->rank - 1; d >= 0 && d < 8; d--) { \
                if (list->size[d] < 0) return -1; \
                strides[d] = step; \
                step *= list->size[d]; \
                if (list->size[d] != 0 && total > (1L << 62) / (list->size[d] + n)) return -2; \
                total *= list->size[d]; \
            } \
            if (list->rank > 2 && list->size[0] == list->size[1]) total += strides[2] / (n + 1); \
        } \
        return total; \
    } \
    void calibrate_sort_##n(double *v, int count, int (*less)(double, double)) \
    { \
        for (int gap = count / 2; gap > 0; gap /= 2) \
            for (int i = gap; i < count; i++) { \
                double x = v[i]; \
                int j = i; \
                for (; j >= gap && less(x, v[j - gap]); j -= gap) v[j] = v[j - gap]; \
                v[j] = x; \
            } \
    }
#define PIECES(a) PIECE(a##0) PIECE(a##1) PIECE(a##2) PIECE(a##3) PIECE(a##4) PIECE(a##5) \
    PIECE(a##6) PIECE(a##7)
PIECES(1) PIECES(2) PIECES(3) PIECES(4) PIECES(5)
