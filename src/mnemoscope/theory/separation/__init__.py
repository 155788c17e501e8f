"""Depth and Start-End separation rank: recurrent arithmetic circuits after Levine, Sharir & Shashua (2018).

Exact ranks by modular arithmetic and tensor networks need the extra `theory`: pip install mnemoscope[theory].
"""

from mnemoscope.theory.separation import _network_statements as _network_statements
from mnemoscope.theory.separation import _theorem as _theorem
from mnemoscope.theory.separation._assignment import (
    best_reward,
    bucket_states,
    end_factors,
    end_product,
    permuted_products,
    start_factors,
    theorem_1_circuit,
)
from mnemoscope.theory.separation._bounds import (
    basic_units,
    conjectured_rank,
    deep_rank_bound,
    exponential_floor,
    input_degree,
    multiset_coefficient,
    separation_ceiling,
    shallow_rank,
)
from mnemoscope.theory.separation._circuit import (
    Circuit,
    circuit_outputs,
    grid_matrix,
    random_circuit,
    random_templates,
    start_end_matrix,
)
from mnemoscope.theory.separation._conjecture import power_circuit, power_matrix_rank
from mnemoscope.theory.separation._grid import all_sequences, distinct_sequences, grid_tensor, matricize, start_end
from mnemoscope.theory.separation._modular import PRIMES, exact_rank
from mnemoscope.theory.separation._network import (
    MinCut,
    Node,
    TensorNetwork,
    basis_cloner,
    circuit_network,
    circuit_tensors,
    cloned,
    contract,
    joining_bonds,
    min_cut,
)
from mnemoscope.theory.separation._rank import FloatRank, GenericRank, equilibrate, float_rank, generic_rank
from mnemoscope.theory.separation._spectrum import (
    Spectrum,
    effective_rank,
    separable_distance,
    separation_spectrum,
    start_end_matrices,
)
from mnemoscope.theory.separation._train import change_templates, tensor_train, weights_tensor

__all__ = [
    "PRIMES",
    "Circuit",
    "FloatRank",
    "GenericRank",
    "MinCut",
    "Node",
    "Spectrum",
    "TensorNetwork",
    "all_sequences",
    "basic_units",
    "basis_cloner",
    "best_reward",
    "bucket_states",
    "change_templates",
    "circuit_network",
    "circuit_outputs",
    "circuit_tensors",
    "cloned",
    "conjectured_rank",
    "contract",
    "deep_rank_bound",
    "distinct_sequences",
    "effective_rank",
    "end_factors",
    "end_product",
    "equilibrate",
    "exact_rank",
    "exponential_floor",
    "float_rank",
    "generic_rank",
    "grid_matrix",
    "grid_tensor",
    "input_degree",
    "joining_bonds",
    "matricize",
    "min_cut",
    "multiset_coefficient",
    "permuted_products",
    "power_circuit",
    "power_matrix_rank",
    "random_circuit",
    "random_templates",
    "separable_distance",
    "separation_ceiling",
    "separation_spectrum",
    "shallow_rank",
    "start_end",
    "start_end_matrices",
    "start_end_matrix",
    "start_factors",
    "tensor_train",
    "theorem_1_circuit",
    "weights_tensor",
]
