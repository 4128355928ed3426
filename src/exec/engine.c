/* exec/engine.c – the engines by name.
 *
 * One row an engine; a second engine adds its vtable here and nowhere else. Everything but opening
 * goes through the vtable (engine.h). Not here: choosing an engine for a user who named none – that
 * is the configuration's default.
 */
#include "exec/engine.h"

static const ts_engine_vtable *const engines[] = {&ts_cpu_engine, &ts_xla_engine};
enum { N_ENGINES = sizeof engines / sizeof *engines };

const char *const *ts_engine_names(void)
{
    static const char *const names[N_ENGINES + 1] = {"cpu", "xla"};
    return names;
}

ts_status ts_engine_open(const ts_engine_options *o, ts_engine **out, ts_error *err)
{
    *out = NULL;
    const char *name = o->name ? o->name : "cpu";
    for (size_t i = 0; i < N_ENGINES; i++)
        if (strcmp(engines[i]->name, name) == 0) return engines[i]->open(o, out, err);
    ts_string known = ts_string_new(1000);
    for (size_t i = 0; i < N_ENGINES; i++)
        ts_string_printf(&known, "%s%s", i ? ", " : "", engines[i]->name);
    ts_status status =
        TS_ERROR(err, TS_UNAVAILABLE, "there is no engine named \"%s\"; this build has: %s", name,
                 known.data ? known.data : "cpu");
    ts_string_free(&known);
    return status;
}
