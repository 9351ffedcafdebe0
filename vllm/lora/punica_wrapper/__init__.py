# SPDX-License-Identifier: Apache-2.0
from vllm._overlay import extend_package, fall_back_to

extend_package(__name__, __path__)

__getattr__ = fall_back_to("vllm._upstream.lora.punica_wrapper")
