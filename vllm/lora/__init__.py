# SPDX-License-Identifier: Apache-2.0
from vllm._overlay import extend_package

extend_package(__name__, __path__)
