/* bench/measure.c – runs one training program and measures it from outside, any program alike.
 *
 * Reads its step lines ("completed step: N, seconds: S, …, loss: L") and evaluation lines ("Completed
 * eval after train step N, loss=L, …"), which Tessera and the PyTorch peer both print. Counts from
 * before fork: the time to the first finished step holds loading, allocation and compilation. Peak
 * memory is the kernel's ru_maxrss of that one child.
 *
 * Usage: measure LOG COMMAND…     writes all lines to LOG and one JSON object to standard output.
 * Not here: any judgement. A median of no steps is null, and the scripts refuse a ratio then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STEPS = 1 << 20, WARM_UP = 3 };

typedef struct run {
    double *seconds; /* of each step line, as the program says */
    int steps;
    double first_step_s, loss, eval_loss; /* negative: not seen */
} run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void read_line(run *r, const char *line, double since_start_s)
{
    const char *p = strstr(line, "Completed eval");
    if (p != NULL && (p = strstr(p, "loss=")) != NULL) {
        r->eval_loss = strtod(p + strlen("loss="), NULL);
        return;
    }
    p = strstr(line, "completed step: ");
    const char *seconds = p != NULL ? strstr(p, "seconds: ") : NULL;
    if (seconds == NULL) return;
    if (r->steps == 0) r->first_step_s = since_start_s;
    if (r->steps < MAX_STEPS) r->seconds[r->steps++] = strtod(seconds + strlen("seconds: "), NULL);
    if ((p = strstr(p, "loss: ")) != NULL) r->loss = strtod(p + strlen("loss: "), NULL);
}

static void print_number(const char *name, double value, const char *end)
{
    if (value >= 0)
        printf("\"%s\": %.6g%s", name, value, end);
    else
        printf("\"%s\": null%s", name, end);
}

static void report(run *r, double wall_s, int status, long peak_kib)
{
    /* The first steps warm caches and the allocator of the other side; they are not in the median. */
    int skip = r->steps > 2 * WARM_UP ? WARM_UP : 0, n = r->steps - skip;
    qsort(r->seconds + skip, (size_t)n, sizeof *r->seconds, by_value);
    double median = n > 0 ? (r->seconds[skip + (n - 1) / 2] + r->seconds[skip + n / 2]) / 2 : -1;
    printf("{\"exit\": %d, \"steps\": %d, ", WIFEXITED(status) ? WEXITSTATUS(status) : 128,
           r->steps);
    print_number("median_step_s", median, ", ");
    print_number("first_step_s", r->first_step_s, ", ");
    print_number("wall_s", wall_s, ", ");
    print_number("loss", r->loss, ", ");
    print_number("eval_loss", r->eval_loss, ", ");
    printf("\"peak_rss_bytes\": %lld}\n", (long long)peak_kib * 1024);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: measure LOG COMMAND…\n");
        return 2;
    }
    FILE *log = fopen(argv[1], "w");
    run r = {malloc(MAX_STEPS * sizeof(double)), 0, -1, -1, -1};
    int fd[2];
    if (log == NULL || r.seconds == NULL || pipe(fd) != 0) {
        perror(argv[1]);
        return 1;
    }
    double start_s = now();
    pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], STDOUT_FILENO);
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        close(fd[1]);
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    close(fd[1]);
    FILE *in = fdopen(fd[0], "r");
    char *line = NULL;
    size_t capacity = 0;
    while (child > 0 && in != NULL && getline(&line, &capacity, in) >= 0) {
        read_line(&r, line, now() - start_s);
        fputs(line, log);
    }
    int status = 0;
    struct rusage usage = {0};
    if (child < 0 || wait4(child, &status, 0, &usage) < 0) {
        perror("measure");
        return 1;
    }
    report(&r, now() - start_s, status, usage.ru_maxrss);
    free(line);
    free(r.seconds);
    return fclose(log) == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
