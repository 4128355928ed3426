/* test_watch.c – what is stuck is told once, with its name; what goes on is not; deadlines; idle times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "train/watch.h"

typedef struct told {
    _Atomic int times;
    char what[200];
    double seconds, at;
    bool deadline;
    _Atomic double ends; /* the deadline; 0: none */
    _Atomic int asked;
    pthread_t thread;
} told;

static void pause_for(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void on_stuck(void *context, const char *what, double seconds, bool deadline)
{
    told *t = context;
    snprintf(t->what, sizeof t->what, "%s", what);
    t->seconds = seconds;
    t->deadline = deadline;
    t->at = ts_clock_seconds();
    t->thread = pthread_self();
    t->times++;
}

static double on_deadline(void *context)
{
    told *t = context;
    t->asked++;
    return t->ends;
}

static ts_watch *opened(double limit, bool deadline, told *t)
{
    ts_watch *w;
    ts_error err = {0};
    if (ts_watch_open(limit, on_stuck, deadline ? on_deadline : NULL, t, &w, &err) != TS_OK)
        fail_msg("%s", err.msg);
    return w;
}

static bool comes(told *t, double within)
{
    const double until = ts_clock_seconds() + within;
    while (!t->times && ts_clock_seconds() < until) pause_for(0.005);
    return t->times > 0;
}

static void stuck_is_told_once(void **unused)
{
    (void)unused;
    told t = {0};
    ts_watch *w = opened(0.2, false, &t);
    const double start = ts_clock_seconds();
    ts_watch_begin(w, "step", 41);
    assert_true(comes(&t, 10));
    assert_string_equal(t.what, "step 41");
    assert_false(t.deadline);
    assert_true(t.seconds >= 0.2 && t.at - start >= 0.2);
    assert_false(pthread_equal(t.thread, pthread_self()));
    ts_watch_begin(w, "step", 42);
    pause_for(0.3);
    assert_int_equal(t.times, 1);
    ts_watch_close(w);
}

/* Each begins within the limit; together they take longer. */
static void what_goes_on_is_not_stuck(void **unused)
{
    (void)unused;
    told t = {0};
    ts_watch *w = opened(1.5, false, &t);
    for (int i = 0; i < 30; i++) {
        ts_watch_begin(w, "step", i);
        pause_for(0.1);
    }
    assert_int_equal(t.times, 0);
    ts_watch_close(w);
}

static void idle_time_counts_for_nothing(void **unused)
{
    (void)unused;
    told t = {0};
    ts_watch *w = opened(0.2, false, &t);
    pause_for(0.4);
    ts_watch_begin(w, "the end of the run", -1);
    ts_watch_idle(w);
    pause_for(0.4);
    assert_int_equal(t.times, 0);
    ts_watch_begin(w, "the end of the run", -1);
    assert_true(comes(&t, 10));
    assert_string_equal(t.what, "the end of the run");
    assert_true(t.seconds < 5);
    ts_watch_close(w);
}

static void no_limit(void **unused)
{
    (void)unused;
    told t = {0};
    ts_watch *w = opened(0, false, &t);
    ts_watch_begin(w, "step", 1);
    pause_for(0.2);
    assert_int_equal(t.times, 0);
    ts_watch_close(w);
}

/* Set while a step is going on, by someone who cannot wake the watch; idle or not. */
static void a_deadline_set_meanwhile(void **unused)
{
    (void)unused;
    for (int idle = 0; idle < 2; idle++) {
        told t = {0};
        ts_watch *w = opened(idle ? 0 : 600, true, &t);
        if (!idle) ts_watch_begin(w, "step", 7);
        pause_for(0.1);
        t.ends = ts_clock_seconds() + 0.5;
        assert_true(comes(&t, 10));
        assert_true(t.deadline);
        assert_true(t.at >= t.ends && t.asked > 1);
        assert_string_equal(t.what, idle ? "" : "step 7");
        ts_watch_close(w);
    }
}

static void nobody_to_tell(void **unused)
{
    (void)unused;
    ts_error err = {0};
    ts_watch *w = (ts_watch *)&err;
    assert_int_equal(ts_watch_open(1, NULL, on_deadline, NULL, &w, &err), TS_OK);
    assert_null(w);
    ts_watch_begin(w, "step", 1);
    ts_watch_idle(w);
    ts_watch_close(w);
    ts_alloc_fail_at(1);
    assert_int_equal(ts_watch_open(1, on_stuck, NULL, NULL, &w, &err), TS_RESOURCE_EXHAUSTED);
    ts_alloc_fail_at(0);
    assert_null(w);
}

/* Closing waits for whoever is being told, and for nothing else. */
static void closing(void **unused)
{
    (void)unused;
    const double start = ts_clock_seconds();
    for (int i = 0; i < 200; i++) {
        told t = {0};
        ts_watch *w = opened(i % 2 ? 1000 : 1e-4, i % 3 == 0, &t);
        ts_watch_begin(w, "step", i);
        ts_watch_close(w);
        assert_true(t.times <= 1);
    }
    assert_true(ts_clock_seconds() - start < 20);
}

static volatile sig_atomic_t handled_here;
static pthread_t me;
static void on_signal(int number)
{
    (void)number;
    handled_here = pthread_equal(me, pthread_self()) ? 1 : 2;
}

/* A signal of the process is handled by a thread that was there before. */
static void signals_are_not_the_watch_s(void **unused)
{
    (void)unused;
    told t = {0};
    struct sigaction a = {.sa_handler = on_signal};
    sigset_t usr1, before;
    me = pthread_self();
    sigaction(SIGUSR1, &a, NULL);
    ts_watch *w = opened(600, true, &t);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, &before); /* the watch would be the only one to take it */
    kill(getpid(), SIGUSR1);
    pause_for(0.1);
    assert_int_equal(handled_here, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(handled_here, 1);
    ts_watch_close(w);
}

/* Ctrl-Z and fg: the time between is not the step's. */
static void a_stopped_process_is_not_stuck(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        told t = {0};
        ts_watch *w = opened(2, true, &t);
        ts_watch_begin(w, "step", 7);
        pause_for(0.2);
        raise(SIGSTOP);
        pause_for(0.7);
        const bool early = t.times > 0;
        pause_for(2.5); /* it still counts what is its own */
        _exit(early ? 1 : t.times == 1 ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    pause_for(3.5);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stuck_is_told_once),
        cmocka_unit_test(what_goes_on_is_not_stuck),
        cmocka_unit_test(idle_time_counts_for_nothing),
        cmocka_unit_test(no_limit),
        cmocka_unit_test(a_deadline_set_meanwhile),
        cmocka_unit_test(nobody_to_tell),
        cmocka_unit_test(closing),
        cmocka_unit_test(signals_are_not_the_watch_s),
        cmocka_unit_test(a_stopped_process_is_not_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
