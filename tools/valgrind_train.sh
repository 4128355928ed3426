#!/bin/sh
# valgrind_train.sh: a few training steps of a small model under valgrind, f32 and then bf16 storage,
# with an evaluation and a checkpoint. VALGRIND holds the command; make valgrind calls this.
set -eu
export GOMP_SPINCOUNT=1000 # the program would set it and start itself again, outside valgrind
for dtype in float32 bfloat16; do
    # shellcheck disable=SC2086
    ${VALGRIND-} "$TESSERA" train configs/base.yml model_name=tessera-byte override_model_config=true \
        base_num_decoder_layers=2 base_emb_dim=64 base_mlp_dim=96 head_dim=16 base_num_query_heads=4 \
        base_num_kv_heads=2 dataset_type=text dataset_path=tools/rdb_text.c tokenizer_type=byte dtype=$dtype \
        steps=3 per_device_batch_size=2 max_target_length=48 learning_rate=1e-3 eval_fraction=0.3 \
        eval_interval=2 run_name=$dtype base_output_directory="${TMPDIR:-/tmp}/valgrind-run" log_config=false
done
