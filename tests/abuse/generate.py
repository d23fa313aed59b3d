#!/usr/bin/env python3
"""Writes a C program that calls every public function of mlcore.h with arguments of all kinds.

    tests/abuse/generate.py mlcore.h > abuse.c

The declarations say what a function takes: each type has a pool of values in abuse.h. GOOD has values
that a call needs to come far, which are then drawn most often; OUT names what no call is written for.
A public function in neither is an error.
"""
import re
import sys

# What is left out, and why.
OUT = {
    'mlc_ctx_free': 'every case calls it',
    'mlc_backend_register': 'changes the process for all that follows',
    'mlc_stdout': 'writes what the caller says',
    'mlc_raise': 'its format belongs to the caller',
    'mlc_cpu_kernels': 'a table that takes no memory of the caller',
}

# Values for parameters: tensors (f float, g f32, i i64, b bool : shape), numbers, names of modules
# (M_ of abuse.h), files. "NAME.FIELD" is of a desc.
GOOD = '''
mlc_from shape=2,3
mlc_zeros shape=2,3
mlc_png_save t=f:3,4,5
mlc_image_load channels=3
mlc_image_load_memory channels=0
mlc_tensorboard_scalar tag=loss
mlc_tensorboard_histogram tag=w t=f:2,3
mlc_tensorboard_image tag=picture t=f:3,4,5
mlc_tensorboard_text tag=note text=a
mlc_tensorboard_pr_curve tag=pr scores=f:4 labels=b:4
mlc_tensorboard_graph net=net x=f:2,3
mlc_eye n=3 m=2
mlc_arange start=0 stop=5 step=1
mlc_linspace start=0 stop=1 n=4
mlc_randperm n=5
mlc_normal mean=0 std=1
mlc_uniform lo=0 hi=1
mlc_truncated_normal mean=0 std=1 lo=-1 hi=1
mlc_bernoulli p=0.5
mlc_randint lo=0 hi=5
mlc_reshape x=f:2,3 shape=3,2
mlc_permute x=f:2,3,4 axes=2,0,1
mlc_expand x=f:1,3 shape=4,3
mlc_unfold x=f:2,5 axis=1 size=3 step=1
mlc_diagonal x=f:3,4 offset=0
mlc_conv x=f:2,2,5,5 w=f:4,2,3,3 b=f:4
mlc_conv_transpose x=f:2,2,5,5 w=f:2,4,3,3 b=f:4
mlc_max_pool x=f:1,2,5,5
mlc_avg_pool x=f:1,2,5,5
mlc_pool_desc_make kernel=2
mlc_adaptive_max_pool x=f:1,2,5,5 size=2,2
mlc_adaptive_avg_pool x=f:1,2,5,5 size=2,2
mlc_interpolate x=f:1,2,5,5 size=3,7
mlc_pixel_shuffle x=f:1,4,3,3 r=2
mlc_pixel_unshuffle x=f:1,1,4,4 r=2
mlc_channels_last x=f:1,2,5,5
mlc_batch_norm x=f:4,3 running_mean=g:3 running_var=g:3 weight=f:3 bias=f:3 momentum=0.1 eps=1e-5
mlc_group_norm x=f:2,4,3 groups=2 weight=f:4 bias=f:4 eps=1e-5
mlc_instance_norm x=f:2,3,4 weight=f:3 bias=f:3 eps=1e-5
mlc_layer_norm x=f:2,3 weight=f:3 bias=f:3 eps=1e-5
mlc_rms_norm x=f:2,3 weight=f:3 eps=1e-5
mlc_matmul a=f:2,3 b=f:3,4
mlc_linear x=f:2,3 w=f:4,3 b=f:4
mlc_linear_ex x=f:2,3 w=f:4,3 b=f:4
mlc_prelu x=f:2,3 w=f:3
mlc_where mask=b:2,3 a=f:2,3 b=f:2,3
mlc_masked_fill x=f:2,3 mask=b:2,3
mlc_masked_fill_ x=f:2,3 mask=b:2,3
mlc_masked_select x=f:2,3 mask=b:2,3
mlc_logical_and a=b:2,3 b=b:2,3
mlc_logical_or a=b:2,3 b=b:2,3
mlc_logical_xor a=b:2,3 b=b:2,3
mlc_logical_not x=b:2,3
mlc_pad x=f:2,3 before=1,1 after=0,1
mlc_diag x=f:3 offset=0
mlc_tile x=f:2,3 reps=2,1
mlc_gather x=f:3,3 axis=0 index=i:2,3
mlc_scatter x=f:3,3 axis=0 index=i:2,3 src=f:2,3
mlc_scatter_add x=f:3,3 axis=0 index=i:2,3 src=f:2,3
mlc_scatter_ x=f:3,3 axis=0 index=i:2,3 src=f:2,3
mlc_scatter_add_ x=f:3,3 axis=0 index=i:2,3 src=f:2,3
mlc_index_select x=f:3,3 axis=0 index=i:4
mlc_gather_rows x=f:3,3 rows=i:4
mlc_embedding index=i:2,3 w=f:3,4
mlc_embedding_ex index=i:2,3 w=f:3,4
mlc_embedding_bag index=i:5 offsets=i:2 w=f:3,4
mlc_embedding_bag_ex index=i:2,3 offsets=i:2 w=f:3,4
mlc_sinusoidal t=3 d=4
mlc_alibi_slopes heads=4
mlc_rotary x=f:1,2,3,4 positions=i:3
mlc_rotary_table positions=i:3 t=3 n=4
mlc_take x=f:2,3 index=i:2,2
mlc_one_hot index=i:2,3 classes=3
mlc_tril x=f:3,3 k=0
mlc_triu x=f:3,3 k=0
mlc_outer a=f:3 b=f:4
mlc_dot a=f:3 b=f:3
mlc_topk x=f:3,4 k=2 axis=1
mlc_multinomial p=f:2,3 n=2
mlc_attention q=f:2,2,3,4 k=f:2,2,3,4 v=f:2,2,3,4
mlc_attention_ex q=f:2,2,3,4 k=f:2,2,3,4 v=f:2,2,3,4
mlc_attention_desc mask=f:3,3 key_lengths=i:2 alibi=g:2 q_offsets=i:3 k_offsets=i:3 dropout=0.5 scale=1
mlc_einsum equation=ij,jk->ik in=f:3,3
mlc_concat list=f:2,3
mlc_stack list=f:2,3
mlc_split x=f:4,3 size=2 axis=0 n_out=2
mlc_chunk x=f:4,3 chunks=2 axis=0
mlc_meshgrid in=f:3
mlc_cross_entropy logits=f:4,3 labels=i:4
mlc_cross_entropy_ex logits=f:4,3,2 labels=i:4,2
mlc_cross_entropy_desc weight=f:3 label_smoothing=0.1 ignore_index=1
mlc_nll_loss x=f:4,3 labels=i:4
mlc_nll_loss_ex x=f:4,3 labels=i:4
mlc_poly1_cross_entropy logits=f:4,3 labels=i:4
mlc_poly1_cross_entropy_ex logits=f:4,3 labels=i:4
mlc_distillation_loss student=f:4,3 teacher=f:4,3 labels=i:4
mlc_distillation_loss_ex student=f:4,3 teacher=f:4,3 labels=i:4
mlc_dice_loss x=f:2,3,4 target=f:2,3,4
mlc_dice_loss_ex x=f:2,3,4 target=f:2,3,4
mlc_tversky_loss x=f:2,3,4 target=f:2,3,4
mlc_tversky_loss_ex x=f:2,3,4 target=f:2,3,4
mlc_contrastive_loss x1=f:4,3 x2=f:4,3 target=i:4
mlc_contrastive_loss_ex x1=f:4,3 x2=f:4,3 target=i:4
mlc_cosine_embedding_loss x1=f:4,3 x2=f:4,3 target=i:4
mlc_cosine_embedding_loss_ex x1=f:4,3 x2=f:4,3 target=i:4
mlc_triplet_margin_loss anchor=f:4,3 positive=f:4,3 negative=f:4,3
mlc_triplet_margin_loss_ex anchor=f:4,3 positive=f:4,3 negative=f:4,3
mlc_multilabel_margin_loss x=f:4,3 target=i:4,3
mlc_multilabel_margin_loss_ex x=f:4,3 target=i:4,3
mlc_ctc_loss log_probs=f:2,4,3 targets=i:2,2 input_lengths=i:2 target_lengths=i:2
mlc_ctc_loss_ex log_probs=f:2,4,3 targets=i:2,2 input_lengths=i:2 target_lengths=i:2
mlc_ctc_greedy log_probs=f:2,4,3 lengths=i:2
mlc_ctc_beam_search log_probs=f:2,4,3 lengths=i:2
mlc_rnn x=f:2,3,4 w=f:12,7
mlc_rnn_desc bias=f:12 project=f:2,3 peepholes=f:9 h=f:2,3 c=f:2,3 lengths=i:2 offsets=i:3
mlc_rnn_forward m=rnn x=f:2,4,3 lengths=i:2 state=f:1,2,3
mlc_attention_forward m=mha query=f:2,3,4 key=f:2,3,4 value=f:2,3,4
mlc_transformer_forward m=enc x=f:2,3,4 memory=f:2,3,4
mlc_forward m=net x=f:2,3
mlc_module_forward m=net in=f:2,3 n_in=1 n_out=1
mlc_summary m=net input=2,3
mlc_nn_sequential_of children=linear
mlc_nn_scale_fit m=scale x=f:4,3
mlc_nn_fold_batch_norm m=cnn
mlc_nn_refresh_batch_norm m=cnn
mlc_cache_create net=gpt
mlc_cache_bytes net=gpt
mlc_forward_cached net=gpt x=i:2,3
mlc_generate net=gpt prompt=i:1,3
mlc_beam_search net=gpt prompt=i:1,3
mlc_generate_desc_make tokens=3
mlc_beam_desc_make tokens=3 beams=2
mlc_cache_desc_make batch=1 capacity=8
mlc_nn_linear in=3 out=4
mlc_nn_linear_desc_make in=3 out=4
mlc_nn_embedding n=3 d=4
mlc_nn_embedding_desc_make n=3 d=4
mlc_nn_conv_desc_make axes=2 in=2 out=3 kernel=3
mlc_nn_conv1d in=3 out=4 kernel=3 stride=1 padding=1
mlc_nn_conv2d in=2 out=4 kernel=3 stride=1 padding=1
mlc_nn_conv3d in=3 out=4 kernel=3 stride=1 padding=1
mlc_nn_causal_conv1d in=3 out=4 kernel=3 dilation=1
mlc_nn_conv_transpose1d in=3 out=4 kernel=3 stride=1 padding=1
mlc_nn_conv_transpose2d in=2 out=4 kernel=3 stride=1 padding=1
mlc_nn_conv_transpose3d in=3 out=4 kernel=3 stride=1 padding=1
mlc_nn_batch_norm channels=3
mlc_nn_batch_norm_desc_make channels=3
mlc_nn_layer_norm n=3
mlc_nn_rms_norm n=3
mlc_nn_group_norm groups=1 channels=3
mlc_nn_instance_norm channels=3
mlc_nn_norm_desc_make size=3
mlc_nn_rms_norm_desc_make size=3
mlc_nn_standardize features=3
mlc_nn_min_max features=3 lo=0 hi=1
mlc_nn_upsample scale=2
mlc_nn_basic_block in=2 out=2 stride=1
mlc_nn_bottleneck in=2 mid=2 out=2 stride=1
mlc_nn_inverted_residual in=2 out=2 stride=1 expand=2
mlc_nn_squeeze_excite channels=2 squeezed=1
mlc_nn_tcn_block in=3 out=3 kernel=3 dilation=1 dropout=0.5
mlc_nn_tcn_desc_make in=3 channels=4 levels=2
mlc_nn_rnn in=3 hidden=3
mlc_nn_gru in=3 hidden=3
mlc_nn_lstm in=3 hidden=3
mlc_nn_rnn_desc_make in=3 hidden=3
mlc_nn_bidirectional forward=rnn backward=rnn
mlc_nn_multihead_attention embed=4 heads=2
mlc_nn_multihead_attention_desc_make embed=4 heads=2
mlc_nn_transformer_desc_make embed=4 heads=2
mlc_nn_transformer_encoder n=1
mlc_nn_transformer_decoder n=1
mlc_nn_gpt_desc_make vocab=3 context=8 layers=1 embed=4 heads=2
mlc_nn_gpt_desc_llama vocab=3 context=8 layers=1 embed=4 heads=2
mlc_nn_bert_desc_make vocab=3 context=8 layers=1 embed=4 heads=2
mlc_sketch_make rows=2 cols=3
mlc_sketch_apply x=f:2,3 axis=1
mlc_sketch_apply_t x=f:2,2 axis=1
mlc_sklinear x=f:2,3 s1=f:1,3,1 s2=f:1,4,1 b=f:4 terms=1
mlc_nn_sklinear in=3 out=3 num_terms=1 low_rank=1
mlc_nn_sklinear_desc_make in=3 out=3 num_terms=1 low_rank=1
mlc_nn_sklinear_desc weight=f:3,3 bias=f:3
mlc_nn_skconv_desc weight=f:3,2,3,3 bias=f:3
mlc_nn_sklinear_panther S1s=f:1,3,1 S2s=f:1,1,3 U1s=f:1,1,3 U2s=f:1,3,1 bias=f:3
mlc_sklinear_to_panther m=sk
mlc_nn_skconv_desc_make axes=2 in=2 out=3 kernel=3 num_terms=1 low_rank=1
mlc_nn_skconv2d in=2 out=3 kernel=3 num_terms=1 low_rank=1
mlc_sketch_model m=net
mlc_quantize_tensor_desc_make bits=8
mlc_quantize_tensor w=f:4,32
mlc_quantize net=net
mlc_fake_quantize x=f:3,4 scale=f:1
mlc_calibrate_begin net=net
mlc_calibrate net=net
mlc_quant_aware_begin net=net
mlc_quant_aware_end net=net
mlc_quant_aware_freeze net=net
mlc_sparsify net=net
mlc_quant_sensitivity net=net
mlc_sketch_model_desc_make num_terms=1 low_rank=1
mlc_loader_create x=f:6,3
mlc_loader_desc_make x=f:6,3 y=i:6 batch=2
mlc_loader_shuffled x=f:6,3 y=i:6 batch=2
mlc_loader_from_desc_make batch=2
mlc_loader_from_desc weights=f:6 labels=i:6
mlc_split_rows n=6
mlc_split_rows_desc labels=i:6
mlc_k_fold n=6 fold=0
mlc_k_fold_desc labels=i:6
mlc_k_fold_desc_make folds=2
mlc_dataset_tensors tensors=f:6,3
mlc_dataset_subset rows=i:3
mlc_dataset_k_fold fold=0
mlc_dataset_labels f=1 classes=2
mlc_dataset_npy path=in.npy
mlc_dataset_npz path=in.npz name=x
mlc_dataset_safetensors path=in.safetensors name=x
mlc_dataset_idx path=in.idx
mlc_dataset_tokens path=tokens.bin
mlc_dataset_tokens_desc_make window=3
mlc_dataset_pnm folder=folder
mlc_dataset_table_desc_make target=y
mlc_csv_load path=one.csv
mlc_table_load path=in.csv
mlc_table_find name=a
mlc_idx_load path=in.idx
mlc_npy_load path=in.npy
mlc_npz_load path=in.npz
mlc_safetensors_load path=in.safetensors
mlc_safetensors_open path=in.safetensors
mlc_safetensors_info name=x
mlc_safetensors_get name=x
mlc_safetensors_view name=x
mlc_load path=net.safetensors m=net
mlc_load_ex path=net.safetensors m=net
mlc_load_memory m=net
mlc_optim_load path=optim.safetensors
mlc_optim_load_ex path=optim.safetensors
mlc_run_load path=in.run
mlc_fit_resume path=in.run
mlc_tokenizer_wordpiece vocab=vocab.txt
mlc_tokenizer_bpe vocab=vocab.txt merges=vocab.txt
mlc_tokenizer_id token=hello
mlc_accuracy scores=f:4,3 labels=i:4
mlc_metric_topk k=1
mlc_metric_update predictions=f:4,3 targets=i:4 weights=f:4
mlc_tracker_update predictions=f:4,3 targets=i:4 weights=f:4
mlc_metric_confusion classes=3
mlc_metric_precision classes=3
mlc_metric_recall classes=3
mlc_metric_f classes=3 beta=1
mlc_metric_auc classes=3
mlc_metric_average_precision classes=3
mlc_metric_balanced_accuracy classes=3
mlc_tracker_last name=loss
mlc_tracker_best name=loss
mlc_tracker_history name=loss
mlc_fit_value name=loss
mlc_on_plateau name=loss
mlc_estimate_memory net=net input=2,3
mlc_estimate_batches net=net input=2,3
mlc_find_batch_size net=net input=2,3
mlc_fixed_block_bytes net=net input=2,3
mlc_module_recompute_budget m=net input=2,3
mlc_module_param name=0.weight
mlc_module_find path=0
mlc_module_freeze glob=*
mlc_module_init glob=*
mlc_optim_group glob=*
mlc_module_bind name=0.weight
mlc_param_desc_make shape=2,3
mlc_mixup_desc_make classes=2
mlc_evaluate net=net
mlc_predict net=net
mlc_fit net=net
mlc_fit_begin net=net
mlc_sched_cosine steps=10 end=0
mlc_sched_linear steps=10 from=1 to=0
mlc_sched_one_cycle steps=10
mlc_one_cycle_desc_make steps=10
mlc_sched_step every=3 gamma=0.5
mlc_cyclic_desc_make up=3 low=0.1
mlc_sched_cyclic up=3 low=0.1
mlc_sched_warmup steps=3
mlc_lr_range_desc from=1e-4 to=1
mlc_ctx_set_threads threads=1
mlc_timeline_begin capacity=10
mlc_budget_step net=net
mlc_on_histograms every=1
mlc_on_validate every=1
mlc_on_nan every=1
mlc_on_memory bytes=1000000
mlc_on_time_limit seconds=10
'''

# Functions that return nothing without an error, by their comments.
MAY_BE_NONE = set('''
mlc_grad mlc_module_find mlc_module_param mlc_module_child mlc_safetensors_metadata mlc_table_text
mlc_metric_like mlc_tokenizer_token mlc_safetensors_name mlc_sweep_trial mlc_sweep_point_at
mlc_timeline_at mlc_timeline_peak mlc_plan_output mlc_table_name mlc_table_category mlc_module_user mlc_module_ctx
mlc_ctx_create mlc_f32 mlc_f64 mlc_i64 mlc_bf16 mlc_f16 mlc_i32
mlc_i8 mlc_u8 mlc_bool mlc_rename_gpt2 mlc_rename_llama mlc_rename_bert mlc_cpu_rule mlc_cpu_moments mlc_optim_scaled mlc_fit_cross_entropy mlc_plan_forward
'''.split())

# A status that is no refusal, or of a context that is not to be changed.
ONLY_ASK = ('mlc_ctx_status', 'mlc_scope_end', 'mlc_memory_info')

# What an error may name beside the function itself: what it is made of.
NAMES = {
    'mlc_calibrate': 'calibrate_begin calibrate_end quantize forward loader linear',
    'mlc_calibrate_begin': 'calibrate quantize', 'mlc_calibration_range': 'calibrate',
    'mlc_quant_aware_begin': 'quantize calibrate', 'mlc_quant_aware_end': 'quantize',
    'mlc_distillation_create': 'distillation',
    'mlc_tensorboard_open': 'tensorboard', 'mlc_tensorboard_graph': 'forward linear',
}

# Calls that need more than their declarations say: the body of the case, in C.
OWN = {
    'mlc_ctx_create': '''
    mlc_ctx_desc d = mlc_ctx_desc_make();
    mlc_status   st = MLC_OK;
    d.hard_limit = LIMIT;
    d.threads = 1;
    d.allocator.alloc = counted_alloc;
    d.allocator.release = counted_release;
    for (int i = (int)pick(3); i > 0; i--)
        switch (pick(9)) {
        case 0: d.threads = a_i32("threads", NO_HINT) % 5; break;
        case 1: d.isa = (mlc_isa)a_enum("isa", MLC_ISA_COUNT); break;
        case 2: d.blas = (mlc_blas)a_enum("blas", 3); break;
        case 3: d.dtype = (mlc_dtype)a_enum("dtype", MLC_DTYPE_COUNT); break;
        case 4: d.device = a_text("device", "cpu"); break;
        case 5: d.allocator.release = NULL; say(" release=NULL"); break;
        case 6:
            d.memory_bytes = (size_t)pick(300000);
            d.memory = memory_of(d.memory_bytes);
            say(" memory_bytes=%zu", d.memory_bytes);
            break;
        case 7: d.soft_limit = a_size("soft_limit", NO_HINT); break;
        default: d.hard_limit = a_size("hard_limit", NO_HINT); break;
        }
    d.status = &st;
    call_begins();
    mlc_ctx *c = mlc_ctx_create(&d);
    if (c == NULL && st == MLC_OK)
        wrong("nothing, and no status");
    if (c != NULL) {
        mlc_scope_begin(c);
        mlc_exp(mlc_ones(c, MLC_F32, mlc_dims2(2, 3)));
        mlc_scope_end(c);
    }
    mlc_ctx_free(c);
''',
    'mlc_from': '''
    mlc_dtype dtype = (mlc_dtype)a_enum("dtype", MLC_DTYPE_COUNT);
    mlc_dims shape = a_dims("shape", "2,3");
    call_begins();
    mlc_tensor *r = mlc_from(a_ctx("ctx"), dtype, shape, chance(10) ? NULL : large());
    check_made(NAMES, r != NULL, false);
    use_tensor(r);
''',
    'mlc_wrap': '''
    int64_t strides[MLC_MAX_DIMS];
    mlc_dtype dtype = (mlc_dtype)a_enum("dtype", MLC_DTYPE_COUNT);
    mlc_dims shape = a_dims("shape", "2,3");
    for (int i = 0; i < MLC_MAX_DIMS; i++)
        strides[i] = chance(90) ? pick(20) : -1 - pick(3);
    const bool some = chance(50);
    if (some)
        say(" strides=%lld,%lld", (long long)strides[0], (long long)strides[1]);
    call_begins();
    mlc_tensor *r = mlc_wrap(a_ctx("ctx"), dtype, shape, some ? strides : NULL,
                             chance(10) ? NULL : large());
    check_made(NAMES, r != NULL, false);
    use_tensor(r);
''',
    'mlc_dims_of': '''
    int64_t v[MLC_MAX_DIMS] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t n = a_i32("n", NO_HINT);
    mlc_dims d = mlc_dims_of(n, n > 0 && n <= MLC_MAX_DIMS && chance(90) ? v : NULL);
    call_begins();
    use_tensor(mlc_zeros(g.ctx, MLC_F32, d));
''',
    'mlc_shape_text': '''
    mlc_tensor *t = a_tensor("t", "");
    char text[64];
    call_begins();
    mlc_shape_text(t, chance(20) ? NULL : text, (size_t)pick(sizeof text + 1));
    check_text(NAMES);
''',
    'mlc_read': '''
    mlc_tensor *t = a_tensor("t", "");
    const size_t bytes = chance(70) && t ? (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype)
                                         : a_size("bytes", NO_HINT);
    call_begins();
    mlc_status r = mlc_read(t, chance(10) ? NULL : large(), bytes);
    check_status(NAMES, r);
''',
    'mlc_write': '''
    mlc_tensor *t = a_tensor("t", "");
    const size_t bytes = chance(70) && t ? (size_t)mlc_numel(t) * mlc_dtype_bytes(t->dtype)
                                         : a_size("bytes", NO_HINT);
    call_begins();
    mlc_status r = mlc_write(t, chance(10) ? NULL : large(), bytes);
    check_status(NAMES, r);
''',
    'mlc_error_clear': '''
    call_begins();
    mlc_error_clear(g.ctx);
    if (mlc_ctx_status(g.ctx) != MLC_OK || *mlc_error(g.ctx))
        wrong("an error is left");
''',
    'mlc_chunk': '''
    mlc_tensor *x = a_tensor("x", "f:4,3"), *out[ROOM] = {NULL};
    const int32_t chunks = (int32_t)a_count("chunks"), axis = a_i32("axis", 0);
    call_begins();
    const int32_t n = mlc_chunk(x, chunks, axis, chance(5) ? NULL : out);
    check_made(NAMES, n > 0, false);
    for (int32_t i = 0; i < n; i++)
        use_tensor(out[i]);
''',
    'mlc_custom': '''
    mlc_custom_op *op = (mlc_custom_op *)zeros_of(sizeof *op);
    op->name = chance(90) ? "twice" : NULL;
    op->forward = chance(90) ? op_forward : NULL;
    op->backward = chance(80) ? op_backward : NULL;
    mlc_tensor **in = a_tensors("in", "f:2,3");
    const int32_t n = chance(70) ? 1 : (int32_t)a_count("n");
    call_begins();
    mlc_tensor *r = mlc_custom(chance(5) ? NULL : op, NULL, in, n);
    check_made("custom twice callback status", r != NULL, false);
    use_tensor(r);
''',
    'mlc_state_save': '''
    mlc_module *m = a_module("m", "net");
    mlc_module_build(m);
    const size_t bytes = chance(80) ? mlc_state_bytes(m) : a_size("bytes", NO_HINT);
    void *block = bytes > 100000 ? large() : memory_of(bytes);
    call_begins();
    mlc_status r = mlc_state_save(m, chance(5) ? NULL : block, bytes);
    check_status(NAMES, r);
    if (r == MLC_OK)
        mlc_state_load(m, block, bytes);
''',
    'mlc_state_load': '''
    mlc_module *m = a_module("m", "net");
    mlc_module_build(m);
    const size_t bytes = chance(80) ? mlc_state_bytes(m) : a_size("bytes", NO_HINT);
    void *block = bytes > 100000 ? large() : zeros_of(bytes);
    call_begins();
    mlc_status r = mlc_state_load(m, chance(5) ? NULL : block, bytes);
    check_status(NAMES, r);
    use_module(m);
''',
    'mlc_module_create': '''
    mlc_module_class cls = {"mine", NULL, NULL, NULL, 0, NULL};
    const size_t bytes = chance(80) ? (size_t)pick(100) : 0;
    void *user = memory_of(bytes);
    cls.name = chance(90) ? "mine" : NULL;
    call_begins();
    mlc_module *r = mlc_module_create(a_ctx("ctx"), chance(5) ? NULL : &cls, chance(20) ? NULL : user,
                                      bytes);
    check_made(NAMES, r != NULL, false);
    use_module(r);
''',
    'mlc_module_tie': '''
    mlc_module *m = new_net(g.ctx), *n = a_module("m", "net");
    mlc_tensor *p = chance(70) ? mlc_module_param(m, "0.weight") : a_tensor("param", "f:4,3");
    const char *name = a_text("name", chance(50) ? "weight" : "other");
    call_begins();
    mlc_status r = mlc_module_tie(n, name, p);
    check_status(NAMES, r);
    use_module(n);
''',
    'mlc_module_bind': '''
    mlc_module *m = a_module("m", "net");
    const char *name = a_text("name", "0.weight");
    call_begins();
    mlc_status r = mlc_module_bind(m, name, chance(10) ? NULL : large());
    check_status(NAMES, r);
    use_module(m);
''',
    'mlc_load_memory': '''
    mlc_module *m = a_module("m", "net");
    const size_t n = chance(70) ? (size_t)pick(400) : 0;
    char *bytes = (char *)zeros_of(n + 8);
    snprintf(bytes + 8, n, "{\\"x\\":{\\"dtype\\":\\"F32\\",\\"shape\\":[2,3],\\"data_offsets\\":[0,24]}}");
    bytes[0] = (char)(chance(80) ? 55 : pick(256));
    mlc_load_desc *d = desc_mlc_load_desc("desc");
    call_begins();
    mlc_status r = mlc_load_memory(m, chance(5) ? NULL : bytes, n + 8, d);
    check_status("load_memory load memory", r);
''',
    'mlc_csv_save': '''
    mlc_tensor *t = a_tensor("t", "f:2,3");
    const char *path = a_target("path");
    const char *const *names = chance(50) ? NULL : a_texts("names", "x");
    call_begins();
    mlc_status r = mlc_csv_save(t, path, names);
    check_status(NAMES, r);
''',
    'mlc_lr_range': '''
    mlc_optim *o = a_optim("opt");
    int64_t n = 0;
    double lr = 0;
    mlc_lr_range_desc d = mlc_lr_range_desc_make(a_double_array("rates"), a_double_array("losses"),
                                                 a_count("steps"));
    if (chance(40)) d.from = a_double("from", NAN);
    if (chance(40)) d.to = a_double("to", NAN);
    if (chance(40)) d.smooth = a_double("smooth", NAN);
    if (chance(40)) d.diverge = a_double("diverge", NAN);
    call_begins();
    mlc_status r = mlc_lr_range(o, chance(5) ? NULL : &d, chance(5) ? NULL : cb_lr_range, NULL,
                                chance(50) ? &n : NULL, chance(50) ? &lr : NULL);
    check_status(NAMES, r);
''',
    'mlc_fit': 'FIT',
    'mlc_fit_begin': 'FIT',
    'mlc_evaluate': 'FIT',
    'mlc_sweep_run': '''
    double         values[2] = {1, 2};
    mlc_sweep_axis axes[2] = {{"lr", values, 2}, {"wd", values, 1}};
    const char    *results[2] = {"loss", "accuracy"};
    mlc_sweep_desc d = mlc_sweep_desc_make(axes, (int32_t)pick(3), results, (int32_t)pick(3));
    mlc_sweep     *s = NULL;
    d.workers = 1;
    for (int i = (int)pick(3); i > 0; i--)
        switch (pick(8)) {
        case 0: axes[0].n = (int32_t)(chance(50) ? pick(3) : -1); say(" n=%d", axes[0].n); break;
        case 1: d.best = a_i32("best", NO_HINT); break;
        case 2: d.n_seeds = a_i32("n_seeds", NO_HINT) % 10; break;
        case 3: d.workers = a_i32("workers", NO_HINT) % 4; break;
        case 4: d.random = a_i64("random", NO_HINT) % 10; break;
        case 5: axes[0].name = a_text("name", NULL); break;
        case 6: axes[0].values = NULL; say(" values=NULL"); break;
        default: d.stop = a_flag("stop"); break;
        }
    call_begins();
    mlc_status r = mlc_sweep_run(a_ctx("ctx"), chance(5) ? NULL : &d, chance(5) ? NULL : cb_trial, NULL,
                                 chance(10) ? NULL : &s);
    check_status(NAMES, r);
    if (s)
        mlc_sweep_print(s, cb_write, NULL);
''',
    'mlc_generate': '''
    mlc_cache *c = a_cache("cache");
    mlc_module *m = chance(90) && c ? g_net : a_module("net", "gpt");
    mlc_tensor *prompt = a_tensor("prompt", chance(50) ? "i:1,3" : "i:2,3");
    mlc_generate_desc *d = desc_mlc_generate_desc("desc");
    if (d && d->out && (d->tokens > ROOM / 2 || chance(50)))
        d->out = chance(50) ? NULL : (int64_t *)large();
    call_begins();
    mlc_status r = mlc_generate(m, c, prompt, d, chance(20) ? NULL : cb_token, NULL);
    check_status("generate forward_cached cache", r);
''',
    'mlc_beam_search': '''
    mlc_cache *c = a_cache("cache");
    mlc_module *m = chance(90) && c ? g_net : a_module("net", "gpt");
    mlc_tensor *prompt = a_tensor("prompt", "i:1,3");
    mlc_beam_desc *d = desc_mlc_beam_desc("desc");
    call_begins();
    mlc_status r = mlc_beam_search(m, c, prompt, d, chance(5) ? NULL : (int64_t *)large(),
                                   chance(50) ? a_double_array("score") : NULL);
    check_status("beam_search forward_cached cache", r);
''',
    'mlc_dequantize_tensor': '''
    mlc_quantize_tensor_desc d = mlc_quantize_tensor_desc_make(chance(50) ? 8 : 4);
    mlc_quantized q;
    memset(&q, 0, sizeof q);
    d.affine = chance(50);
    d.group = chance(50) ? 0 : 2;
    if (chance(90))
        mlc_quantize_tensor(a_tensor("w", "f:4,8"), &d, &q);
    switch (pick(10)) {
    case 0: q.q = a_tensor("q", "i:4,8"); break;
    case 1: q.scale = a_tensor("scale", "f:4"); break;
    case 2: q.zero = a_tensor("zero", "i:4"); break;
    case 3: q.bits = a_i32("bits", 8); break;
    case 4: q.group = a_i64("group", 8); break;
    case 5: q.ndim = a_i32("ndim", 2); break;
    case 6: q.shape[0] = a_i64("rows", 4); break;
    default: break;
    }
    const mlc_quantized *of = chance(5) ? NULL : &q;
    g.none = g.none || of == NULL || (q.q == NULL && q.scale == NULL);
    call_begins();
    mlc_tensor *r = mlc_dequantize_tensor(of);
    check_made(NAMES, r != NULL, false);
    use_tensor(r);
''',
    'mlc_forward_cached': '''
    mlc_cache *c = a_cache("cache");
    mlc_module *m = chance(90) && c ? g_net : a_module("net", "gpt");
    mlc_tensor *x = a_tensor("x", chance(50) ? "i:1,3" : "i:2,1");
    call_begins();
    mlc_tensor *r = mlc_forward_cached(m, x, c);
    check_made(NAMES, r != NULL, false);
    use_tensor(r);
''',
    'mlc_average_swap': '''
    mlc_average *a = a_average("average");
    bool on = a_flag("on");
    call_begins();
    mlc_status r = mlc_average_swap(a, on);
    check_status(NAMES, r);
    if (a) mlc_average_swap(a, false);
''',
    'mlc_optim_minimize': '''
    mlc_optim *o = a_optim("opt");
    mlc_tensor *loss = chance(60) && g_net ? mlc_mean_all(mlc_square(mlc_forward(g_net, plain_f32(
        mlc_dims2(2, 3))))) : a_tensor("loss", "f:");
    call_begins();
    mlc_status r = mlc_optim_minimize(o, loss);
    check_status("optim_minimize optim_step backward", r);
''',
    'mlc_optim_step_with': '''
    mlc_optim *o = a_optim("opt");
    double loss = 0;
    call_begins();
    mlc_status r = mlc_optim_step_with(o, chance(5) ? NULL : cb_loss, chance(80) ? g_net : NULL,
                                       chance(50) ? &loss : NULL);
    check_status("optim_step", r);
''',
    'mlc_optim_curvature_with': '''
    mlc_optim *o = a_optim("opt");
    int64_t n = a_i64("samples", 2);
    call_begins();
    mlc_status r = mlc_optim_curvature_with(o, chance(5) ? NULL : cb_loss, chance(80) ? g_net : NULL,
                                            n > 100 ? 100 : n);
    check_status("optim_curvature", r);
''',
    'mlc_budget_step': '''
    mlc_module *m = a_module("net", "net");
    mlc_optim *o = chance(90) ? mlc_sgd(m, 0.1) : a_optim("opt");
    mlc_batch b;
    memset(&b, 0, sizeof b);
    b.x = a_tensor("x", "f:6,3");
    b.y = a_tensor("y", "i:6");
    b.n = a_i64("n", 6);
    mlc_budget budget = mlc_budget_make(m);
    budget.bytes = a_i64("bytes", 1 << 20);
    mlc_fit_desc d = mlc_fit_desc_make(mlc_cross_entropy);
    double loss = 0;
    call_begins();
    mlc_status r = mlc_budget_step(m, o, chance(5) ? NULL : &b, chance(5) ? NULL : &d,
                                   chance(5) ? NULL : &budget, chance(50) ? &loss : NULL);
    check_status("budget_step cross_entropy", r);
''',
    'mlc_dataset_create': '''
    mlc_dataset user = {NULL, set_count, 1, {{MLC_F32, {{3}, 1}, false}}, 0, set_get, NULL, NULL};
    mlc_dataset *r;
    switch (pick(8)) {
    case 0: user.n_fields = a_i32("n_fields", 1); break;
    case 1: user.count = NULL; say(" count=NULL"); break;
    case 2: user.get = NULL; say(" get=NULL"); break;
    case 3: user.field[0].dtype = (mlc_dtype)a_enum("dtype", MLC_DTYPE_COUNT); break;
    case 4: user.field[0].dims = a_dims("dims", NULL); break;
    case 5: user.scratch = a_size("scratch", 0); break;
    case 6: user.field[0].ragged = true; user.length = set_length; say(" ragged"); break;
    default: break;
    }
    if (user.field[0].dims.n != 1 || user.field[0].dims.v[0] < 3 || user.field[0].dtype > MLC_I64)
        user.get = NULL;
    call_begins();
    r = mlc_dataset_create(a_ctx("ctx"), chance(5) ? NULL : &user);
    check_made(NAMES, r != NULL, false);
    if (user.get)
        use_dataset(r);
''',
    'mlc_dataset_map': '''
    mlc_dataset *data = a_dataset("data");
    mlc_transform t = {NULL, map_run, 1, {{MLC_F32, {{1}, 1}, false}}, 0};
    switch (pick(6)) {
    case 0: t.n_fields = a_i32("n_fields", 1); break;
    case 1: t.run = NULL; say(" run=NULL"); break;
    case 2: t.scratch = a_size("scratch", 0); break;
    case 3: t.field[0].dims.v[0] = a_i64("size", 1); break;
    default: break;
    }
    const bool fits = t.field[0].dims.v[0] > 0;
    call_begins();
    mlc_dataset *r = mlc_dataset_map(a_ctx("ctx"), data, chance(5) ? NULL : &t);
    check_made(NAMES, r != NULL, false);
    if (fits)
        use_dataset(r);
''',
    'mlc_on_time_limit': None,
    'mlc_module_add': '''
    mlc_module *m = a_module("parent", "net"), *child = chance(10) ? m : a_module("child", "linear");
    call_begins();
    mlc_status r = mlc_module_add(m, child);
    check_status(NAMES, r);
    use_module(m);
''',
    'mlc_module_copy': '''
    mlc_module *a = a_module("to", "net"), *b = chance(10) ? a : a_module("from", "net");
    call_begins();
    mlc_status r = mlc_module_copy(a, b);
    check_status(NAMES, r);
    use_module(a);
''',
    'mlc_tokenizer_encode': '''
    mlc_tokenizer *t = a_tokenizer("t");
    const char *text = a_text("text", "hello worlds");
    size_t n = text ? (size_t)pick((int64_t)strlen(text) + 1) : (size_t)pick(2);
    int64_t *ids = an_i64_array("ids");
    int64_t room = chance(70) ? pick(ROOM + 1) : -pick(3);
    call_begins();
    mlc_tokenizer_encode(t, text, n, ids, room);
    check_text(NAMES);
''',
    'mlc_tokenizer_tensor': '''
    mlc_tokenizer *t = a_tokenizer("t");
    const char *text = a_text("text", "hello worlds");
    size_t n = text ? (size_t)pick((int64_t)strlen(text) + 1) : (size_t)pick(2);
    call_begins();
    mlc_tensor *r = mlc_tokenizer_tensor(t, text, n);
    check_made("tokenizer", r != NULL, false);
    use_tensor(r);
''',
    'mlc_tokenizer_decode': '''
    mlc_tokenizer *t = a_tokenizer("t");
    int64_t *ids = an_i64_array("ids");
    int64_t n = chance(70) ? pick(ROOM + 1) : -pick(3);
    char text[64];
    call_begins();
    mlc_tokenizer_decode(t, ids, n, chance(10) ? NULL : text, (size_t)pick(sizeof text + 1));
    check_text(NAMES);
''',
    'mlc_tokenizer_piece': '''
    mlc_tokenizer *t = a_tokenizer("t");
    char text[64];
    int64_t id = a_i64("id", 2);
    call_begins();
    mlc_tokenizer_piece(t, id, a_flag("first"), chance(10) ? NULL : text, (size_t)pick(sizeof text + 1));
    check_text(NAMES);
''',
    'mlc_safetensors_save': 'NAMED',
    'mlc_npz_save': 'NAMED',
    'mlc_tracker_restore': '''
    mlc_tracker *t = a_tracker("t");
    mlc_named list[3] = {{a_text("", "loss"), a_tensor("t0", "f:3,2")}, {a_text("", "metrics"),
                         a_tensor("t1", "i:3")}, {"x", a_tensor("t2", "f:3")}};
    call_begins();
    mlc_status r = mlc_tracker_restore(t, chance(5) ? NULL : list, pick(5) - 1);
    check_status("tracker", r);
''',
    'mlc_run_save': 'RUN',
    'mlc_run_load': 'RUN',
    'mlc_run_saver_save': 'RUN',
    'mlc_grad_report_print': '''
    mlc_grad_report *list = (mlc_grad_report *)zeros_of(3 * sizeof *list);
    for (int i = 0; i < 3; i++)
        list[i].norm = any_double(1);
    call_begins();
    mlc_status r = mlc_grad_report_print(a_ctx("ctx"), chance(5) ? NULL : list, pick(5) - 1,
                                         cb_write, NULL);
    check_status(NAMES, r);
''',
    'mlc_timer_print': '''
    mlc_timer list[3] = {mlc_timer_make("a"), mlc_timer_make(a_text("name", "b")), mlc_timer_make("c")};
    mlc_timer_begin(&list[0]);
    mlc_timer_end(&list[0], any_double(1));
    call_begins();
    mlc_status r = mlc_timer_print(a_ctx("ctx"), chance(5) ? NULL : list, pick(5) - 1, cb_write, NULL);
    check_status(NAMES, r);
''',
    'mlc_estimate_print': '''
    int64_t *batches = an_i64_array("batches");
    mlc_memory *m = (mlc_memory *)zeros_of(ROOM * sizeof *m);
    m[0].peak = any_int(1000);
    call_begins();
    mlc_status r = mlc_estimate_print(a_ctx("ctx"), batches, (int32_t)(pick(5) - 1),
                                      chance(5) ? NULL : m, cb_write, NULL);
    check_status(NAMES, r);
''',
    'mlc_estimate_memory': 'ESTIMATE',
    'mlc_estimate_batches': 'ESTIMATE',
    'mlc_fixed_block_bytes': 'ESTIMATE',
    'mlc_find_batch_size': 'ESTIMATE',
    'mlc_plot_write': 'PLOT',
    'mlc_plot_save': 'PLOT',
    'mlc_plot_image': 'PLOT',
    'mlc_sched_at': '''
    int64_t *at = an_i64_array("at");
    mlc_sched s = mlc_sched_multi_step(at, (int32_t)a_count("n"), a_double("gamma", 0.5));
    if (at == NULL)
        return;
    call_begins();
    mlc_sched_at(chance(5) ? NULL : &s, a_i64("t", 3));
''',
    'mlc_sched_multi_step': '''
    int64_t *at = an_i64_array("at");
    int32_t n = (int32_t)a_count("n");
    mlc_sched s = mlc_sched_multi_step(at, n, a_double("gamma", 0.5));
    call_begins();
    use_sched(s);
''',
    'mlc_sched_sequence': '''
    mlc_sched parts[3] = {mlc_sched_constant(1), mlc_sched_cosine(any_int(5), 0), mlc_sched_step(any_int(2), 0.5)};
    int64_t *starts = an_i64_array("starts");
    int32_t n = (int32_t)(pick(5) - 1);
    mlc_sched s = mlc_sched_sequence(chance(5) ? NULL : parts, starts, n > 3 ? 3 : n);
    call_begins();
    use_sched(s);
''',
    'mlc_sched_warmup': '''
    mlc_sched then = mlc_sched_cosine(any_int(5), any_double(0));
    mlc_sched s = mlc_sched_warmup(a_i64("steps", 3), chance(10) ? NULL : &then);
    call_begins();
    use_sched(s);
''',
    'mlc_optim_schedule': '''
    mlc_optim *o = a_optim("opt");
    mlc_sched  s = mlc_sched_cosine(a_i64("steps", 5), a_double("end", 0));
    call_begins();
    mlc_status r = mlc_optim_schedule(o, (mlc_knob)a_enum("knob", MLC_KNOB_COUNT), chance(10) ? NULL : &s);
    check_status(NAMES, r);
    use_optim(o);
''',
    'mlc_sched_plot': '''
    mlc_sched  s = mlc_sched_cosine(a_i64("steps", 5), a_double("end", 0));
    int64_t n = a_i64("steps", 20);
    const char *path = a_target("path");
    call_begins();
    mlc_status r = mlc_sched_plot(a_ctx("ctx"), chance(5) ? NULL : &s, n, path);
    check_status(NAMES, r);
''',
    'mlc_mixup': '''
    mlc_collate c;
    mlc_dataset *data = a_dataset("data");
    mlc_mixup_desc *d = desc_mlc_mixup_desc("desc");
    memset(&c, 0, sizeof c);
    call_begins();
    mlc_status r = mlc_mixup(a_ctx("ctx"), data, d, chance(5) ? NULL : &c);
    check_status(NAMES, r);
    if (r == MLC_OK && c.run) {
        mlc_loader_from_desc l = mlc_loader_from_desc_make(2);
        l.collate = &c;
        use_loader(mlc_loader_from(g.ctx, data, &l));
    }
''',
    'mlc_callback_create': '''
    mlc_callback c = {a_text("name", "mine"), NULL, 0, NULL, NULL, 0, NULL};
    c.events = (uint32_t)a_i64("events", 0);
    call_begins();
    mlc_callback *r = mlc_callback_create(a_ctx("ctx"), chance(5) ? NULL : &c);
    check_made(NAMES, r != NULL, false);
''',
    'mlc_plan_forward': '''
    mlc_plan *p = a_plan("plan");
    mlc_plan_evaluation u = { p, chance(50) ? mlc_cross_entropy : NULL };
    mlc_batch b;
    memset(&b, 0, sizeof b);
    b.x = a_tensor("x", "f:2,4");
    mlc_tensor *output = NULL;
    call_begins();
    mlc_plan_forward(chance(5) ? NULL : &u, NULL, chance(5) ? NULL : &b, chance(90) ? &output : NULL);
    if (output != NULL) use_tensor(output);
''',
    'mlc_distillation_forward': '''
    mlc_distillation *d = a_distillation("distillation");
    mlc_batch b;
    memset(&b, 0, sizeof b);
    b.x = a_tensor("x", "f:2,4");
    b.y = a_tensor("y", "i:2");
    b.n = 2;
    mlc_tensor *output = NULL;
    mlc_module *m = chance(80) ? NULL : a_module("net", "");
    call_begins();
    mlc_distillation_forward(chance(5) ? NULL : d, m, chance(5) ? NULL : &b, chance(90) ? &output : NULL);
    if (output != NULL) use_tensor(output);
''',
    'mlc_fit_cross_entropy': '''
    mlc_batch b;
    mlc_tensor *output = NULL;
    mlc_module *m = a_module("net", "net");
    memset(&b, 0, sizeof b);
    b.x = a_tensor("x", "f:6,3");
    b.y = a_tensor("y", "i:6");
    b.n = 6;
    call_begins();
    mlc_tensor *r = mlc_fit_cross_entropy(NULL, m, chance(5) ? NULL : &b, chance(90) ? &output : NULL);
    check_made("cross_entropy forward linear", r != NULL, true);
    use_tensor(r);
''',
    'mlc_module_recompute_budget': '''
    mlc_module *m = a_module("m", "net");
    mlc_dims d = a_dims("input", "2,3");
    int64_t bytes = a_i64("bytes", 100000);
    call_begins();
    mlc_status r = mlc_module_recompute_budget(m, d, bytes);
    check_status("recompute_budget forward", r);
    use_module(m);
''',
    'mlc_on_signal': '''
    const char *path = a_target("path");
    call_begins();
    mlc_callback *r = mlc_on_signal(a_ctx("ctx"), path);
    check_made(NAMES, r != NULL, false);
    if (chance(50)) use_callback(r);
    mlc_callback_free(g.ctx, r);
''',
    'mlc_optim_state_iter_make': 'ITER',
    'mlc_optim_state_next': 'ITER',
}
OWN = {k: v for k, v in OWN.items() if v}

SHARED = {
    'FIT': '''
    mlc_module *m = a_module("net", "net");
    mlc_optim *o = chance(80) ? mlc_sgd(m, 0.1) : a_optim("opt");
    mlc_loader *l = a_loader("train");
    (void)o;
    mlc_fit_desc d = mlc_fit_desc_make(chance(70) ? mlc_cross_entropy : chance(50) ? mlc_mse_loss : NULL);
    mlc_callback *calls[2] = {a_callback("callback"), a_callback("")};
    mlc_fit_metric metrics[2] = {{"accuracy", a_metric("metric"), true}, {a_text("", "f"), new_metric(), true}};
    mlc_tracker *history = NULL;
    double loss = 0;
    d.epochs = 1 + pick(2);
    for (int i = (int)pick(4); i > 0; i--)
        switch (pick(9)) {
        case 0: d.epochs = a_i64("epochs", 1); d.epochs = d.epochs > 5 ? 5 : d.epochs; break;
        case 1: d.steps = a_i64("steps", 3); break;
        case 2: d.forward = cb_fit_forward; say(" forward"); break;
        case 3: d.autocast = (mlc_dtype)a_enum("autocast", MLC_DTYPE_COUNT); d.has_autocast = true; break;
        case 4: d.validation = a_loader("validation"); break;
        case 5: d.validate_every = a_i64("validate_every", 1); break;
        case 6: d.metrics = metrics; d.n_metrics = (int32_t)(pick(4) - 1); say(" metrics=%d", d.n_metrics);
                d.n_metrics = d.n_metrics > 2 ? 2 : d.n_metrics; break;
        case 7: d.callbacks = calls; d.n_callbacks = (int32_t)(pick(4) - 1);
                d.n_callbacks = d.n_callbacks > 2 ? 2 : d.n_callbacks; say(" callbacks=%d", d.n_callbacks);
                break;
        default: d.has_seed = true; break;
        }
    if (d.steps > 20) d.steps = 20;
    call_begins();
    @FIT@
''',
    'NAMED': '''
    const char *path = a_target("path");
    mlc_named list[3] = {{a_text("", "a"), a_tensor("t0", "")}, {a_text("", "b"), a_tensor("t1", "")},
                         {"c", a_tensor("t2", "")}};
    const int64_t n = pick(5) - 1;
    call_begins();
    mlc_status r = @CALL@(a_ctx("ctx"), path, chance(5) ? NULL : list, n > 3 ? 3 : n@MORE@);
    check_status(NAMES, r);
''',
    'RUN': '''
    mlc_run run;
    memset(&run, 0, sizeof run);
    run.net = a_module("net", "net");
    run.optim = chance(50) ? mlc_adam(run.net, 0.1) : NULL;
    run.loader = chance(30) ? a_loader("loader") : NULL;
    run.history = chance(30) ? a_tracker("history") : NULL;
    run.fit = chance(10) ? a_fit("fit") : NULL;
    @RUN@
''',
    'ESTIMATE': '''
    mlc_module *m = a_module("net", "net");
    mlc_dims input = a_dims("input", "2,3");
    mlc_estimate_desc d = mlc_estimate_desc_make(chance(80) ? mlc_cross_entropy : mlc_mse_loss,
                                                 chance(60) ? mlc_adam : NULL);
    int64_t batches[4] = {1, 2, any_int(3), any_int(4)}, batch = 0;
    mlc_memory *out = (mlc_memory *)zeros_of(4 * sizeof *out);
    size_t bytes = 0;
    for (int i = (int)pick(3); i > 0; i--)
        switch (pick(5)) {
        case 0: d.input = (mlc_dtype)a_enum("input", MLC_DTYPE_COUNT); break;
        case 1: d.target = (mlc_dtype)a_enum("target", MLC_DTYPE_COUNT); break;
        case 2: d.target_shape = a_dims("target_shape", "2"); d.has_target_shape = true; break;
        case 3: d.autocast = (mlc_dtype)a_enum("autocast", MLC_DTYPE_COUNT); d.has_autocast = true; break;
        default: d.loss = NULL; say(" loss=NULL"); break;
        }
    mlc_batch_size_desc f = mlc_batch_size_desc_make(g.ctx);
    f.least = any_int(1); f.most = any_int(8); f.bytes = any_int(1000000); f.share = any_double(0.5);
    f.choice = (mlc_batch_choice)a_enum("choice", 3);
    say(" batches=%lld,%lld least=%lld most=%lld bytes=%lld", (long long)batches[2], (long long)batches[3],
        (long long)f.least, (long long)f.most, (long long)f.bytes);
    call_begins();
    @ESTIMATE@
''',
    'PLOT': '''
    mlc_plot_series series[2] = {{a_text("label", "a"), a_double_array("x"), a_double_array("y"), a_count("n"),
                                  (mlc_plot_mark)a_enum("mark", 4)}, {"b", NULL, a_double_array("y"), 3, MLC_PLOT_LINE}};
    mlc_plot plots[2];
    memset(plots, 0, sizeof plots);
    plots[0].title = a_text("title", "t");
    plots[0].x_label = a_text("x_label", "t");
    plots[0].x_log = a_flag("x_log");
    plots[0].y_log = a_flag("y_log");
    plots[0].series = plots[1].series = series;
    plots[0].count = plots[1].count = pick(4) - 1;
    if (plots[0].count > 2) plots[0].count = plots[1].count = 2;
    int64_t n = pick(4) - 1, columns = any_int(1);
    if (n > 2) n = 2;
    say(" count=%lld columns=%lld", (long long)n, (long long)columns);
    call_begins();
    @PLOT@
    check_status(NAMES, r);
''',
    'ITER': '''
    mlc_optim *o = a_optim("opt");
    call_begins();
    mlc_optim_state_iter it = mlc_optim_state_iter_make(o);
    for (int i = 0; i < 30 && mlc_optim_state_next(&it); i++)
        mlc_numel(it.tensor);
    mlc_optim_state_next(chance(50) ? &it : NULL);
    check_text("optim");
''',
}
FILL = {
    'mlc_fit': ('@FIT@', 'mlc_status r = mlc_fit(m, o, l, chance(5) ? NULL : &d, chance(50) ? &history : NULL);'
                         ' (void)loss; check_status("fit forward cross_entropy loss callback loader metric step nn: linear", r);'),
    'mlc_fit_begin': ('@FIT@', 'mlc_fit_state *s = mlc_fit_begin(m, o, l, chance(5) ? NULL : &d); (void)loss;'
                               ' check_made(NAMES, s != NULL, false);'
                               ' if (s) { mlc_fit_step(s); mlc_fit_validate(s); mlc_fit_loss(s); mlc_fit_end(s, &history); }'),
    'mlc_evaluate': ('@FIT@', 'mlc_status r = mlc_evaluate(m, l, chance(5) ? NULL : &d, chance(50) ? &loss : NULL);'
                              ' (void)history; check_status("evaluate fit forward cross_entropy loss callback loader metric linear", r);'),
    'mlc_run_save': ('@RUN@', 'const char *path = a_target("path"); call_begins();'
                     ' mlc_status r = mlc_run_save(a_ctx("ctx"), path, chance(5) ? NULL : &run); check_status(NAMES, r);'),
    'mlc_run_load': ('@RUN@', 'const char *path = a_path("path", "in.run"); call_begins();'
                     ' mlc_status r = mlc_run_load(a_ctx("ctx"), path, chance(5) ? NULL : &run); check_status(NAMES, r);'),
    'mlc_run_saver_save': ('@RUN@', 'mlc_run_saver *s = a_saver("saver"); const char *path = a_target("path"); call_begins();'
                           ' mlc_status r = mlc_run_saver_save(s, path, chance(5) ? NULL : &run); check_status(NAMES, r);'
                           ' mlc_run_saver_wait(s);'),
    'mlc_estimate_memory': ('@ESTIMATE@', 'mlc_status r = mlc_estimate_memory(m, input, chance(5) ? NULL : &d, chance(5) ? NULL : out);'
                            ' check_status("estimate forward loss", r); (void)batch; (void)bytes;'),
    'mlc_estimate_batches': ('@ESTIMATE@', 'mlc_status r = mlc_estimate_batches(m, input, chance(5) ? NULL : &d, batches, (int32_t)(pick(6) - 1) % 5, chance(5) ? NULL : out);'
                             ' check_status("estimate forward loss", r); (void)batch; (void)bytes;'),
    'mlc_fixed_block_bytes': ('@ESTIMATE@', 'mlc_status r = mlc_fixed_block_bytes(m, input, chance(5) ? NULL : &d, chance(5) ? NULL : &bytes);'
                              ' check_status("estimate fixed_block forward loss", r); (void)batch; (void)out;'),
    'mlc_find_batch_size': ('@ESTIMATE@', 'mlc_status r = mlc_find_batch_size(m, input, chance(5) ? NULL : &d, chance(30) ? NULL : &f, chance(5) ? NULL : &batch);'
                            ' check_status("estimate find_batch forward loss", r); (void)out; (void)bytes;'),
    'mlc_plot_write': ('@PLOT@', 'mlc_status r = mlc_plot_write(a_ctx("ctx"), chance(5) ? NULL : plots, n, columns, cb_write, NULL);'),
    'mlc_plot_save': ('@PLOT@', 'const char *path = a_target("path"); mlc_status r = mlc_plot_save(a_ctx("ctx"), path, chance(5) ? NULL : plots, n, columns);'),
    'mlc_plot_image': ('@PLOT@', 'mlc_tensor *t = mlc_plot_image(a_ctx("ctx"), chance(5) ? NULL : plots, n, columns, 1 + (int32_t)pick(3)); mlc_status r = t ? MLC_OK : MLC_ERR_ARG;'),
}

OBJECTS = {'mlc_optim': 'a_optim', 'mlc_dataset': 'a_dataset', 'mlc_loader': 'a_loader', 'mlc_metric': 'a_metric',
           'mlc_tracker': 'a_tracker', 'mlc_tokenizer': 'a_tokenizer', 'mlc_table': 'a_table',
           'mlc_cache': 'a_cache', 'mlc_average': 'a_average', 'mlc_callback': 'a_callback',
           'mlc_safetensors': 'a_file', 'mlc_fit_state': 'a_fit', 'mlc_sweep': 'a_sweep',
           'mlc_run_saver': 'a_saver', 'mlc_tensorboard': 'a_board', 'mlc_timeline': 'a_timeline', 'mlc_profile': 'a_profile', 'mlc_plan': 'a_plan', 'mlc_calibration': 'a_calibration',
           'mlc_distillation': 'a_distillation', 'mlc_ctx': 'a_ctx'}
USES = {'mlc_tensor': 'use_tensor', 'mlc_module': 'use_module', 'mlc_optim': 'use_optim', 'mlc_dataset': 'use_dataset',
        'mlc_loader': 'use_loader', 'mlc_metric': 'use_metric', 'mlc_callback': 'use_callback'}
CALLBACKS = {'mlc_writer': 'cb_write', 'mlc_lambda_fn': 'cb_lambda', 'mlc_loss_fn': 'cb_loss', 'mlc_grad_fn': 'cb_grad',
             'mlc_piece_fn': 'cb_piece', 'mlc_plan_fn': 'cb_piece', 'mlc_forward_hook': 'cb_hook', 'mlc_sched_fn': 'cb_sched',
             'mlc_quant_score': 'cb_score',
             'mlc_token_fn': 'cb_token', 'mlc_lr_range_fn': 'cb_lr_range', 'mlc_trial_fn': 'cb_trial',
             'mlc_fit_forward_fn': 'cb_fit_forward', 'callback void': 'cb_event',
             'callback mlc_tensor *': 'mlc_cross_entropy', 'callback mlc_optim *': 'mlc_adam'}
WRITES = re.compile(r'save|write|plot|_csv$|on_csv|on_json|on_histograms|on_resume|cache|checkpoint')


def strip(text):
    text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
    return re.sub(r'^\s*#.*?(?<!\\)$', '', text, flags=re.M | re.S)


def split_commas(text):
    parts, depth, at = [], 0, ''
    for c in text:
        depth += (c in '([') - (c in ')]')
        if c == ',' and depth == 0:
            parts.append(at.strip())
            at = ''
        else:
            at += c
    if at.strip():
        parts.append(at.strip())
    return parts


class Header:
    def __init__(self, path):
        with open(path, encoding='utf-8') as f:
            text = f.read()
        text = text[:text.index('/* @@ API.CPP')]
        text = strip(text)
        self.enums, self.structs, self.functions = {}, {}, {}
        for m in re.finditer(r'typedef enum \w+ \{(.*?)\} (\w+);', text, re.S):
            names = [n.split('=')[0].strip() for n in split_commas(m.group(1))]
            self.enums[m.group(2)] = len([n for n in names if n and not n.endswith(('FORCE_32', '_COUNT'))])
        for m in re.finditer(r'typedef struct \w+ \{([^{}]*)\} (\w+);', text):
            self.structs[m.group(2)] = [f for line in m.group(1).split(';') for f in self.fields(line)]
        for m in re.finditer(r'MLC_API ([^;{]*?)(\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*(?:MLC_PRINTF\([^)]*\))?;', text):
            self.functions[m.group(2)] = (' '.join(m.group(1).split()), self.params(m.group(3)))
        declared = re.findall(r'^MLC_API', text, re.M)
        if len(declared) != len(self.functions):
            sys.exit('%d declarations, %d of them read' % (len(declared), len(self.functions)))

    @staticmethod
    def fields(line):
        line = ' '.join(line.split())
        if not line or '(' in line:
            return []
        m = re.match(r'((?:const |unsigned |struct )*\w+) ?(.*)', line)
        result = []
        for part in m.group(2).split(','):
            part = part.strip()
            stars, name, size = re.match(r'((?:\*| |const\b)*)(\w+)(\[.*\])?', part).groups()
            result.append(((m.group(1) + ' ' + stars).strip(), name, size))
        return result

    @staticmethod
    def params(text):
        text = ' '.join(text.split())
        if text == 'void' or not text:
            return []
        result = []
        for p in split_commas(text):
            if p == '...':
                continue
            m = re.match(r'(.*?)\(\*(\w+)\)\((.*)\)$', p)
            if m:
                result.append(('callback ' + m.group(1).strip(), m.group(2)))
                continue
            m = re.match(r'(.*?)(\w+)(\[\w*\])?$', p)
            result.append((m.group(1).strip() + (' *' if m.group(3) else ''), m.group(2)))
        return result


def good_values():
    table = {}
    for line in GOOD.split('\n'):
        if line:
            name, *values = line.split(' ')
            table[name] = dict(v.split('=', 1) for v in values)
    return table


def quoted(text):
    return 'NULL' if text is None else '"' + text + '"'


class Writer:
    def __init__(self, header):
        self.h = header
        self.good = good_values()
        self.descs = []
        self.out = []

    def number(self, good, name):
        return good.get(name, 'NO_HINT')

    def value(self, where, ctype, name, after):
        """The C expression for a value of this type, and what stands for it: None if there is none."""
        good = self.good.get(where, {})
        base = ctype.replace('const', '').replace('struct ', '').replace('*', '').strip()
        stars = ctype.count('*')
        if ctype.startswith('callback'):
            return CALLBACKS[ctype]
        q = quoted(name)
        if stars == 0:
            if after and (name.startswith('n_') or name in ('n', 'most', 'room')) and base != 'double':
                return '(%s)a_count(%s)' % (base, q)
            if base in ('int64_t', 'uint64_t'):
                return '(%s)a_i64(%s, %s)' % (base, q, self.number(good, name))
            if base in ('int32_t', 'int', 'uint32_t', 'uint16_t'):
                return '(%s)a_i32(%s, %s)' % (base, q, self.number(good, name))
            if base == 'size_t':
                return 'a_size(%s, %s)' % (q, self.number(good, name))
            if base == 'char':
                return '(char)pick(256)'
            if base in ('double', 'float'):
                if base == 'float':
                    return '(float)(pick(100) - 50)'
                return 'a_double(%s, %s)' % (q, good.get(name, 'NAN'))
            if base == 'bool':
                return 'a_flag(%s)' % q
            if base == 'mlc_dims':
                return 'a_dims(%s, %s)' % (q, quoted(good.get(name)))
            if base in self.h.enums:
                return '(%s)a_enum(%s, %d)' % (base, q, self.h.enums[base])
            if base in CALLBACKS:
                return 'chance(8) ? NULL : %s' % CALLBACKS[base]
            if base == 'mlc_rng_state':
                return '(mlc_rng_state){(uint64_t)any_int(1), (uint64_t)any_int(1)}'
            return None
        if base == 'mlc_tensor':
            spec = good.get(name, '')
            if stars == 2 and 'const' not in ctype and name != 'state':
                return '(mlc_tensor **)a_room(%s, ROOM * sizeof(void *))' % q
            return ('a_tensor(%s, "%s")' if stars == 1 else 'a_tensors(%s, "%s")') % (q, spec)
        if base == 'mlc_module':
            return ('a_module(%s, "%s")' if stars == 1 else 'a_modules(%s, "%s")') % (q, good.get(name, ''))
        if base == 'mlc_dataset' and stars == 2 and 'const' not in ctype:
            return '(mlc_dataset **)a_room(%s, ROOM * sizeof(void *))' % q
        if base == 'mlc_dataset' and stars == 2:
            return 'a_datasets(%s)' % q
        if base in OBJECTS and stars == 1:
            return '%s(%s)' % (OBJECTS[base], q)
        if base == 'char' and 'const' in ctype:
            if stars == 2:
                return 'a_texts(%s, %s)' % (q, quoted(good.get(name)))
            if name in ('path', 'folder', 'vocab', 'merges', 'root'):
                if WRITES.search(where) and name not in good:
                    return 'a_target(%s)' % q
                return 'a_path(%s, %s)' % (q, quoted(good.get(name)))
            if name == 'dir':
                return 'a_folder(%s)' % q
            return 'a_text(%s, %s)' % (q, quoted(good.get(name)))
        if base == 'int64_t' and stars == 1:
            return 'an_i64_array(%s)' % q
        if base == 'double' and stars == 1:
            return 'a_double_array(%s)' % q
        if base == 'void' and name == 'user':
            return 'NULL'
        if 'const' in ctype and stars == 1 and self.maker(base):
            self.need(base)
            return 'desc_%s(%s)' % (base, q)
        if stars == 1 and self.maker(base) and base in self.h.structs:
            self.need(base)
            return 'desc_%s(%s)' % (base, q)
        if 'const' in ctype and stars == 1 and base in self.h.structs:
            self.need(base)
            return 'desc_%s(%s)' % (base, q)
        if stars >= 1 and 'const' not in ctype.split('*')[0] or stars == 2:
            size = 'sizeof(void *)' if stars > 1 else 'sizeof(%s)' % base if base != 'void' else '64'
            return '(%s)a_room(%s, ROOM * %s)' % (ctype if base != 'void' else 'void *', q, size)
        if base == 'void' and stars == 1:
            return '(chance(10) ? NULL : large())'
        return None

    def makers(self, base):
        names = [f for f, (r, p) in self.h.functions.items() if r == base and re.search('_make$|_desc_llama$|^mlc_sketch_make', f)]
        return names

    def maker(self, base):
        return bool(self.makers(base))

    def need(self, base):
        if base in self.descs:
            return
        self.descs.append(base)
        lines = ['static void change_%s(%s *d)' % (base, base), '{']
        cases = []
        fields = self.h.structs[base]
        for k, (ctype, name, size) in enumerate(fields):
            if name in ('user', 'fn', 'next') or size:      # next: private to the iterators
                continue
            before = fields[k - 1] if k else ('', '', '')
            after = '*' in before[0] and name.startswith('n')
            core = ctype.replace('const', '').strip()
            if '*' not in ctype and core in self.h.structs and core != 'mlc_dims':
                self.need(core)
                cases.append('change_%s(&d->%s);' % (core, name))
                continue
            v = self.value(base, ctype, name, after)
            if v is not None:
                cases.append('d->%s = %s;' % (name, v))
        makers = self.makers(base)
        lines.append('    say(" %s{");' % base)
        lines.append('    for (int64_t i = pick(4); i > 0; i--)')
        lines.append('        switch (pick(%d)) {' % max(len(cases), 1))
        for i, c in enumerate(cases):
            lines.append('        case %d: %s break;' % (i, c))
        lines += ['        default: break;', '        }', '    (void)d;', '    say("}");', '}']
        lines.append('static %s *desc_%s(const char *name)' % (base, base))
        lines.append('{')
        lines.append('    %s *d = (%s *)zeros_of(ROOM * sizeof *d);' % (base, base))
        lines.append('    if (chance(15)) {')
        lines.append('        say(" %s=NULL", name);')
        lines.append('        return NULL;')
        lines.append('    }')
        if makers:
            lines.append('    switch (pick(%d)) {' % len(makers))
            for i, m in enumerate(makers):
                params = self.h.functions[m][1]
                args = [self.value(m, t, n, self.follows(params, k)) for k, (t, n) in enumerate(params)]
                lines.append('    %s *d = %s(%s); break;' % (('case %d:' % i) if i else 'default:', m, ', '.join(args)))
            lines.append('    }')
        lines += ['    say(" %s=", name);', '    change_%s(d);' % base, '    for (int i = 1; i < ROOM; i++)', '        d[i] = d[0];', '    return d;', '}', '']
        self.out.append('\n'.join(lines))

    @staticmethod
    def follows(params, k):
        """Does an array stand before this parameter, which counts it?"""
        name = params[k][1]
        if name == 'n' and k + 1 < len(params) and params[k + 1][0].endswith('mlc_module *const *'):
            return True
        if k == 0 or '*' in params[k][0]:
            return False
        if name == 'n_in' or name == 'n_out':
            return any('*' in t and n == name[2:] for t, n in params)
        before = [t for t, n in params[:k] if n not in ('threshold', 'desc')]
        return bool(before) and '*' in before[-1] and not before[-1].endswith(('char *', 'mlc_ctx *',
               'mlc_tensor *', 'mlc_module *', 'mlc_optim *', 'mlc_timeline *', 'mlc_profile *', 'mlc_plan *', 'mlc_calibration *', 'mlc_distillation *',
               'mlc_tokenizer *', 'mlc_metric *',
               'mlc_dataset *', 'mlc_cache *')) or name == 'n' and before[-1].endswith('**') or name == 'room'

    def case(self, name):
        result, params = self.h.functions[name]
        short = name[4:]
        names = ' '.join([short.rstrip('_'), re.sub('_ex$', '', short)] + NAMES.get(name, '').split())
        lines = ['static void case_%s(void)' % name, '{']
        if name in OWN:
            body = OWN[name]
            if body in SHARED:
                body = SHARED[body]
                if name in FILL:
                    body = body.replace(*FILL[name])
                body = body.replace('@CALL@', name).replace('@MORE@', ', NULL' if name == 'mlc_safetensors_save' else '')
            return '\n'.join(lines) + body.replace('NAMES', '"%s"' % names).rstrip() + '\n}\n'
        args = []
        for k, (ctype, pname) in enumerate(params):
            after = self.follows(params, k)
            if ctype.startswith('callback'):
                args.append('chance(8) ? NULL : %s' % CALLBACKS[ctype])
                continue
            v = self.value(name, ctype, pname, after)
            if v is None:
                sys.exit('%s: no value for %s %s' % (name, ctype, pname))
            base = ctype.replace('const', '').replace('*', '').strip()
            if base in CALLBACKS:
                args.append('(%s)' % v)
                continue
            if '*' in ctype and base in ('void',) and pname == 'user':
                args.append('NULL')
                continue
            ctype_var = ctype.replace('const *', '*') if ctype.count('*') == 2 and base == 'mlc_tensor' else ctype
            if ctype.count('*') == 1 and base in self.h.structs and v.startswith('desc_'):
                ctype_var = base + ' *'
            if base == 'mlc_dataset' and v.startswith('a_datasets'):
                lines.append('    mlc_dataset **v_%s = %s;' % (pname, v))
                args.append('(const mlc_dataset *const *)v_%s' % pname if 'const' in ctype else 'v_%s' % pname)
                continue
            if base == 'char' and ctype.count('*') == 2:
                ctype_var = 'const char *const *'
            if base in ('mlc_module', 'mlc_tensor') and ctype.count('*') == 2:
                ctype_var = base + ' **'
            lines.append('    %s v_%s = %s;' % (ctype_var, pname, v))
            args.append('v_%s' % pname)
        lines.append('    call_begins();')
        call = '%s(%s)' % (name, ', '.join(args))
        base = result.replace('const', '').replace('*', '').strip()
        may = 'true' if name in MAY_BE_NONE else 'false'
        if result == 'void':
            lines += ['    %s;' % call, '    check_text("%s");' % names]
        elif result == 'mlc_status' and name not in ONLY_ASK:
            lines += ['    mlc_status r = %s;' % call, '    check_status("%s", r);' % names]
        elif '*' in result:
            lines += ['    %s r = %s;' % (result, call), '    check_made("%s", r != NULL, %s);' % (names, may)]
            if base in USES and 'const' not in result:
                lines.append('    %s(r);' % USES[base])
        elif result == 'mlc_sched':
            lines += ['    use_sched(%s);' % call]
        else:
            lines += ['    (void)%s;' % call, '    check_text("%s");' % names]
        if params and params[0][0] == 'mlc_module *' and result == 'mlc_status':
            if name not in ('mlc_module_free',):
                lines.append('    use_module(v_%s);' % params[0][1])
        lines += ['}', '']
        return '\n'.join(lines)


def main():
    h = Header(sys.argv[1])
    for table in (OUT, OWN, MAY_BE_NONE, NAMES):
        for name in table:
            if name not in h.functions:
                sys.exit('%s is no public function' % name)
    w = Writer(h)
    for base in ('mlc_load_desc', 'mlc_generate_desc', 'mlc_beam_desc', 'mlc_mixup_desc'):
        w.need(base)
    names = [n for n in h.functions if n not in OUT]
    cases = [w.case(n) for n in names]
    print('/* Written by tests/abuse/generate.py. */')
    print('#include "abuse.h"\n')
    print('\n'.join(w.out))
    print('\n'.join(cases))
    print('const char *const SHORT_NAMES[] = {')
    for n in h.functions:
        print('    "%s",' % n[4:])
    print('    NULL};\n')
    print('static const function FUNCTIONS[] = {')
    for n in names:
        print('    {"%s", case_%s},' % (n, n))
    print('};\n')
    print('int main(int argc, char **argv)\n{')
    for n in sorted(OUT):
        print('    printf("left out: %s: %s\\n");' % (n, OUT[n]))
    print('    fflush(stdout);')
    print('    return drive(FUNCTIONS, LEN(FUNCTIONS), %d, argc, argv);\n}' % len(OUT))


main()
