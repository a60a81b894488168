"""Names of vLLM's engine arguments (AsyncEngineArgs) that mean nothing to this backend.

They may stand in model.json, so that one file serves both backends; the load logs them as ignored. Arguments that
would change answers are not ignored: they are in `UNSUPPORTED_VLLM_ARGUMENTS`, and refused.
"""

from collections.abc import Mapping

UNSUPPORTED_VLLM_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "convert": ("auto", "none"),
    "disable_sliding_window": (False,),
    "enable_lora": (False,),
    "hf_overrides": ({},),
    "logits_processors": ([],),
    "logprobs_mode": (),
    "override_generation_config": ({},),
    "override_neuron_config": ({},),
    "override_pooler_config": (),
    "rope_scaling": ({},),
    "rope_theta": (),
    "runner": ("auto", "generate"),
    "skip_tokenizer_init": (False,),
    "task": ("auto", "generate"),
}
"""With the values, beside null, that ask for what happens anyway."""

IGNORED_VLLM_ARGUMENTS = frozenset(
    """
    additional_config all2all_backend allow_deprecated_quantization api_process_count api_process_rank
    attention_backend attention_config block_manager
    calculate_kv_scales collect_detailed_traces compilation_config config_format cp_kv_cache_interleave_size
    cpu_offload_gb cudagraph_capture_sizes
    data_parallel_address data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank
    data_parallel_rank_local data_parallel_rpc_port data_parallel_size data_parallel_size_local
    data_parallel_start_rank dbo_decode_token_threshold dbo_prefill_token_threshold dcp_kv_cache_interleave_size
    decode_context_parallel_size default_mm_loras disable_async_output_proc disable_cascade_attn
    disable_chunked_mm_input disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_log_requests
    disable_log_stats disable_mm_preprocessor_cache disable_nccl_for_dp_synchronization
    distributed_executor_backend download_dir
    enable_dbo enable_eplb enable_expert_parallel enable_flashinfer_autotune enable_log_requests enable_mfu_metrics
    enable_multimodal_encoder_data_parallel enable_prompt_embeds enable_prompt_tokens_details enable_sleep_mode
    eplb_config expert_placement_strategy
    fail_on_environ_validation fully_sharded_loras
    generation_config guided_decoding_backend
    hf_config_path hf_token
    ignore_patterns interleave_mm_strings io_processor_plugin
    kv_events_config kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill kv_transfer_config
    limit_mm_per_prompt load_format logits_processor_pattern long_prefill_token_threshold
    lora_dtype lora_modules
    mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype max_cpu_loras max_long_partial_prefills
    max_lora_rank max_loras max_num_partial_prefills max_parallel_loading_workers max_seq_len_to_capture
    media_io_kwargs mm_encoder_attn_backend mm_encoder_tp_mode mm_processor_cache_gb mm_processor_cache_type
    mm_processor_kwargs mm_shm_cache_max_object_size_mb model_class_overrides model_impl model_loader_extra_config
    moe_backend multi_step_stream_outputs
    nnodes node_rank num_lookahead_slots numa_bind
    observability_config optimization_level otlp_traces_endpoint
    pipeline_parallel_size preemption_mode prefill_context_parallel_size prefix_caching_hash_algo profiler_config
    pt_load_map_location
    ray_workers_use_nsight reasoning_parser reasoning_parser_plugin renderer_num_workers revision
    safetensors_load_strategy scheduler_cls scheduler_delay_factor scheduler_reserve_full_isl served_model_name
    show_hidden_metrics_for_version skip_mm_profiling spec_target_max_model_len
    structured_outputs_config swap_space
    tensor_parallel_size tokenizer_mode tokenizer_revision trust_remote_code
    ubatch_size use_async_output_proc use_tqdm_on_load use_v2_block_manager
    video_pruning_rate
    weight_transfer_config worker_cls worker_extension_cls
    """.split()  # noqa: SIM905 one name a line would hide that this is one list
)
