/* train/config_engine.c – the rules between the keys of engine, plugin, compiler and profiler.
 *
 * Only what is wrong whatever machine and command it is: with engine=auto the engine is not known yet, and some keys
 * mean something to `tessera compile` alone. What training refuses once it knows is in choose.c.
 */
#include "train/config_internal.h"

static void check_plugin(ts_loading *l)
{
    static const char *const names[] = {"cpu", "tpu", "cuda"};
    const char *plugin = l->c->plugin;
    if (!*plugin || l->bad[TS_K_plugin]) return;
    bool known = strchr(plugin, '/') != NULL;
    for (int i = 0; i < 3; i++) known |= strcmp(plugin, names[i]) == 0;
    const char *near = ts_nearest_word(plugin, names, 3);
    if (!known && near)
        ts__key_problem(l, TS_K_plugin,
                        "expected cpu, tpu, cuda or the path of a library; did you mean %s?", near);
    else if (!known)
        ts__key_problem(l, TS_K_plugin,
                        "expected cpu, tpu, cuda or the path of a library (./%.100s for one in the "
                        "working folder)",
                        plugin);
    else if (!strcmp(l->c->engine, "cpu") && !l->bad[TS_K_engine])
        ts__key_problem(l, TS_K_plugin,
                        "plugins are of the xla engine, and engine=cpu is set; set engine=xla, or "
                        "leave plugin out");
}

/* engine=auto with a plugin is xla. */
static void check_profiler(ts_loading *l)
{
    const ts_config *c = l->c;
    bool cpu = !strcmp(c->engine, "cpu"), xla = !strcmp(c->engine, "xla") || (!cpu && *c->plugin);
    if (l->bad[TS_K_profiler] || l->bad[TS_K_engine] || !*c->profiler) return;
    if (cpu && !strcmp(c->profiler, "xplane"))
        ts__key_problem(l, TS_K_profiler,
                        "is the profile of an accelerator, and engine=cpu is set; trace works");
    if (xla && !strcmp(c->profiler, "trace"))
        ts__key_problem(l, TS_K_profiler,
                        "is the cpu engine's timeline, and engine=xla is set; xplane works");
    if (l->bad[TS_K_skip_first_n_steps_for_profiler] || l->bad[TS_K_steps]) return;
    if (c->steps != -1 && c->skip_first_n_steps_for_profiler >= c->steps)
        ts__key_problem(l, TS_K_skip_first_n_steps_for_profiler,
                        "leaves none of steps=%lld to be profiled; %lld or less works",
                        (long long)c->steps, (long long)c->steps - 1);
}

/* "--xla_a=1 xla_b=true": blanks between them, the dashes of XLA_FLAGS allowed. */
static void derive_flags(ts_loading *l)
{
    static const char blanks[] = " \t\n", letters[] = "abcdefghijklmnopqrstuvwxyz"
                                                      "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const char *text = l->c->compile_xla_flags;
    const char **item = ts_arena_alloc(l->arena, (strlen(text) / 2 + 1) * sizeof *item);
    size_t n = 0;
    if (!item) {
        l->out_of_memory = true;
        return;
    }
    for (const char *at = text + strspn(text, blanks); *at; at += strspn(at, blanks)) {
        size_t length = strcspn(at, blanks), dashes = strspn(at, "-"), name;
        const char *flag = at + (dashes <= 2 ? dashes : 0);
        name = strspn(flag, letters);
        if (!name || flag[name] != '=' || flag + name + 1 == at + length) {
            ts__key_problem(l, TS_K_compile_xla_flags,
                            "\"%.*s\" is no option; expected name=value, separated by blanks",
                            length > 100 ? 100 : (int)length, at);
            return;
        }
        item[n] = ts_arena_strndup(l->arena, flag, (size_t)(at + length - flag));
        if (!item[n++]) l->out_of_memory = true;
        at += length;
    }
    l->c->xla_flags = (ts_config_list){n, item};
}

void ts__config_derive_engine(ts_loading *l)
{
    check_plugin(l);
    check_profiler(l);
    if (!l->bad[TS_K_compile_xla_flags]) derive_flags(l);
}
