/* copy_peak.c: the speed of memcpy on this machine, in one thread: what a save beside the training can cost at best.
 *
 * copy_peak MEGABYTES prints a flat JSON object: bytes a second into memory that was written before, and into memory
 * that was not, where the kernel clears every page first – the first save of a run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double copy(char *to, const char *from, size_t n)
{
    double start = now();
    memcpy(to, from, n);
    __asm__ volatile("" ::"r"(to) : "memory");
    return (double)n / (now() - start);
}

int main(int argc, char **argv)
{
    size_t n = (argc > 1 ? strtoull(argv[1], NULL, 10) : 256) * 1000000;
    char *from = malloc(n), *to = malloc(n);
    if (n == 0 || !from || !to) return 1;
    memset(from, 1, n);
    double first = copy(to, from, n), best = 0;
    for (int i = 0; i < 7; i++) {
        double speed = copy(to, from, n);
        if (speed > best) best = speed;
    }
    printf("{\"copy_bytes\": %.4g, \"first_copy_bytes\": %.4g}\n", best, first);
    free(from);
    free(to);
    return 0;
}
