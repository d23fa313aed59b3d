/* digits_kann.c -- the README's first program, by KANN (r557): its RMSprop stands for AdamW
 *
 *   build   cc -O2 -Ikann bench/programs/digits_kann.c kann/kann.c kann/kautodiff.c -lm
 *   run     ./a.out                                         from the folder of mlcore.h       */
#include "kann.h"

#include <stdio.h>
#include <stdlib.h>

#define N       1797
#define N_TRAIN 1500

static float pixels[N][64], labels[N][10]; /* labels are 1 of 10 */

static int read_row(char *line, int i)
{
	char *p = line, *q;
	int j;
	for (j = 0; j < 66; ++j, p = q + 1) {
		float v = strtof(p, &q);
		if (q == p || (j < 65 && *q != ',')) return -1;
		if (j < 64) pixels[i][j] = v / 16.0f;
		else if (j == 64 && v >= 0.0f && v < 10.0f) labels[i][(int)v] = 1.0f;
		else if (j == 64) return -1;
	}
	return *q == '\n' || *q == '\r' || *q == 0 ? 0 : -1;
}

static int read_csv(const char *fn)
{
	char line[1024];
	int n = 0;
	FILE *fp = fopen(fn, "r");
	if (fp == 0) {
		perror(fn);
		return -1;
	}
	while (n < N && fgets(line, sizeof(line), fp)) {
		if (line[0] == '#') continue;
		if (read_row(line, n++) < 0) {
			fprintf(stderr, "%s: row %d: want 66 numbers\n", fn, n);
			fclose(fp);
			return -1;
		}
	}
	fclose(fp);
	if (n < N) fprintf(stderr, "%s: want %d rows, it has %d\n", fn, N, n);
	return n < N ? -1 : 0;
}

static int argmax(const float *v)
{
	int j, k = 0;
	for (j = 1; j < 10; ++j)
		if (v[j] > v[k]) k = j;
	return k;
}

int main(void)
{
	static float *x[N], *y[N];
	kad_node_t *t;
	kann_t *ann;
	int i, right = 0;
	if (read_csv("examples/data/digits.csv") < 0) return 1;
	for (i = 0; i < N; ++i) x[i] = pixels[i], y[i] = labels[i];
	kann_verbose = 0;
	t = kann_layer_input(64);
	t = kad_relu(kann_layer_dense(t, 128));
	ann = kann_new(kann_layer_cost(t, 10, KANN_C_CEM), 0);
	kann_train_fnn1(ann, 0.001f, 32, 20, 20, 0.0f, N_TRAIN, x, y);
	for (i = N_TRAIN; i < N; ++i) right += argmax(kann_apply1(ann, x[i])) == argmax(y[i]);
	printf("%.1f %% of %d new digits are right\n", 100.0 * right / (N - N_TRAIN), N - N_TRAIN);
	kann_delete(ann);
	return 0;
}
