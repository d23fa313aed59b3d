/* The reader of CSV: tensors of numbers, and tables with every column looked at. The first byte
 * chooses the options. */
#include "fuzz.h"

static void walk(mlc_table *t)
{
    for (int64_t k = 0; k < mlc_table_columns(t); k++) {
        mlc_table_find(t, mlc_table_name(t, k));
        for (int64_t r = 0; r < mlc_table_rows(t) && r < 40; r++)
            if (!mlc_table_text(t, r, k)) fuzz_fail("a field is not there");
    }
    for (int64_t k = 0; k < mlc_table_columns(t) && k < 20; k++) {
        fuzz_read(mlc_table_column(t, k));
        fuzz_read(mlc_table_missing(t, k));
        for (int64_t i = mlc_table_categories(t, k); i-- > 0;) mlc_table_category(t, k, i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const mlc_column types[] = {MLC_COLUMN_TEXT, MLC_COLUMN_F64, MLC_COLUMN_I64};
    mlc_csv_desc d = mlc_csv_desc_make();
    if (size == 0) return 0;
    const char *path = fuzz_file(data + 1, size - 1);
    d.header = (data[0] & 1) != 0;
    d.missing = (data[0] & 2) != 0;
    d.dtype = data[0] & 4 ? MLC_I64 : data[0] & 8 ? MLC_F64 : MLC_F32;
    d.delimiter = data[0] & 16 ? ';' : data[0] & 32 ? '\t' : ',';
    d.skip_lines = data[0] >> 7;
    fuzz_begin();
    fuzz_read(mlc_csv_load(fuzz_ctx, path, &d));
    fuzz_end(size, false);             /* a digit becomes a number of 8 bytes                  */
    d.types = types;
    d.n_types = data[0] & 64 ? 3 : 0;
    fuzz_begin();
    mlc_table *t = mlc_table_load(fuzz_ctx, path, &d);
    walk(t);
    mlc_table_free(t);
    fuzz_end(size, false);
    return 0;
}
