"""What vLLM's CUDA build makes of launch arguments, on a host without a GPU. To be run by an environment's Python.

`python cuda_settings.py ARGUMENTS.json` takes a list of command lines and prints, after MARK, a list: for each what
vLLM settled on, as the step probe reads it, and its connector. vLLM's own parser and configuration do the work, as in
its server. What a GPU would answer is made up: one H200. Kernels need the driver and are left out, and every model is
described as the dense one, since a mixture of experts asks kernels.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MARK = "tracon-settings "
KERNELS = ("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch", "vllm.vllm_flash_attn")
QUESTIONS = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8", "cutlass_group_gemm_supported")
"""What modules ask kernels of when they are imported."""
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Of vLLM 0.32 and of 0.26."""
DENSE = "Qwen3ForCausalLM"


def answer_yes(name: str) -> Any:  # noqa: ANN401 - a kernel
    """Any function of a module of kernels."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_: True


def make_up_gpu() -> None:
    for name in KERNELS:
        module = sys.modules[name] = ModuleType(name)
        module.__dict__["__getattr__"] = answer_yes
    kernels: Any = importlib.import_module("torch").ops._C
    for question in QUESTIONS:
        setattr(kernels, question, answer_yes(question))
    platforms: Any = importlib.import_module("vllm.platforms")
    cuda: Any = importlib.import_module("vllm.platforms.cuda")
    capability = importlib.import_module("vllm.platforms.interface").DeviceCapability(9, 0)
    answers = {
        "get_device_capability": capability,
        "get_device_name": "NVIDIA H200",
        "get_device_total_memory": 143_771 << 20,
        "device_count": 1,
        "num_compute_units": 132,
    }
    methods = {name: classmethod(lambda cls, *_, answer=answer, **__: answer) for name, answer in answers.items()}
    platforms._current_platform = platforms.current_platform = type("H200", (cuda.NonNvmlCudaPlatform,), methods)()


def find_triton() -> None:
    """It is installed, but without a driver vLLM does not count it, and refuses its second model runner.

    Modules that on this GPU look into Triton's configurations of kernels get Triton's own.
    """
    configs: Any = importlib.import_module("vllm.config.vllm")
    configs.HAS_TRITON = True
    stand_in: Any = importlib.import_module("vllm.triton_utils").triton
    stand_in.Config = importlib.import_module("triton").Config


def describe_models_as_dense() -> None:
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()
    inspect = registry._LazyRegisteredModel.inspect_model_cls
    dense = registry.ModelRegistry.models[DENSE]
    registry._LazyRegisteredModel.inspect_model_cls = lambda model: inspect(dense)


def import_parser() -> Any:  # noqa: ANN401 - a module of vLLM's
    for name in PARSERS:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(" or ".join(PARSERS))


def read_launch(words: list[str]) -> dict[str, Any]:
    options: Any = import_parser()
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    arguments = options.make_arg_parser(parser).parse_args(words)
    options.validate_parsed_serve_args(arguments)
    engine: Any = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(arguments)
    server = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    config = engine.create_engine_config(usage_context=server)
    settings = importlib.import_module("tracon_patches.engine_settings").read_settings(config)
    transfer = config.kv_transfer_config
    return {"settings": settings, "connector": transfer and transfer.kv_connector}


def main() -> None:
    make_up_gpu()
    find_triton()
    describe_models_as_dense()
    launches = [read_launch(words) for words in json.loads(Path(sys.argv[1]).read_text())]
    print(f"\n{MARK}{json.dumps(launches)}", flush=True)


if __name__ == "__main__":
    main()
