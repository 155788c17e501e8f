"""Small changes to formulas and figures, each of which some test must notice: what `make mutants` runs.

A mutant names the file (below src/mnemoscope), text that occurs in it exactly once, what replaces it, and the tests that
must fail then: test files or single tests, as few and as fast as will do.
"""

from __future__ import annotations

from mutants.mutant import Mutant
from mutants.scope_table import CHANGING_SCOPE_MUTANTS, SCOPE_MUTANTS

EQUATIONS = "tests/test_equations.py"
FULL_ATTENTION = "tests/kernels/test_cuda_full_attention.py"
RELEVANCY = "tests/layers/test_relevancy.py"
STABLE = "tests/layers/test_stable.py"
ORTHOGONAL = "tests/layers/test_orthogonal.py"
FRAME = "tests/kernels/test_kernel_frame.py"
INITIALIZATION = "tests/layers/test_initialization.py"
SUMMARIES = "tests/training/test_summaries.py"
FIT = "tests/training/test_fit.py"
HEADLINE = "tests/report/test_headline.py"
VIEW = "tests/report/test_view.py"
CHARTS = "tests/report/test_chart_values.py"
DRAWING = "tests/report/test_drawing.py"
RENDERING = "tests/report/test_rendering.py"
JACOBIANS = "tests/theory/test_kerg_jacobians.py"
PATHS = "tests/theory/test_kerg_paths.py"
PARAMETERS = "tests/theory/test_kerg_parameters.py"
SPARSE = "tests/theory/test_kerg_sparse.py"
UNIFORM = "tests/theory/test_kerg_uniform.py"
BOUNDS = "tests/theory/test_levine_bounds.py"
CONSTANTS = "tests/theory/test_stability_constants.py"
DESCENT = "tests/theory/test_stability_descent.py"
LSTM = "tests/theory/test_stability_lstm.py"
COST = "tests/theory/test_smoothness_cost.py"
ENTROPY_THEORY = "tests/theory/test_smoothness_entropy.py"
LOSSES = "tests/theory/test_smoothness_losses.py"
CHAOS = "tests/theory/test_smoothness_chaos.py"
SENSITIVITY = "tests/theory/test_smoothness_sensitivity.py"
REGULARIZATION = "tests/theory/test_foundations_regularization.py"
RECURRENCES = "tests/theory/test_foundations_recurrences.py"
VARIANCES = "tests/theory/test_foundations_initialization.py"
LYAPUNOV = "tests/scopes/test_lyapunov.py"
SYSTEMS = "tests/systems/test_known_systems.py"
DISTANCES = "tests/training/test_distances.py"
TRUNCATED = "tests/theory/test_stability_truncated.py"
SPECTRUM = "tests/theory/test_levine_spectrum.py"
ASSIGNMENT = "tests/theory/test_levine_assignment.py"
CIRCUIT = "tests/theory/test_levine_circuit.py"
RANK = "tests/theory/test_levine_rank.py"
NETWORK = "tests/theory/test_levine_network.py"
PPO = "tests/rl/test_ppo.py"
REWARDS = "tests/rl/test_reward_scale.py"
VERDICTS = "tests/studies/test_verdicts.py"
FAILURES = "tests/studies/test_failures.py"
REPRODUCE = "tests/studies/test_reproduce.py"
MISSING = "tests/studies/test_missing.py"
PLACEMENT = "tests/training/test_placement.py"

# fmt: off
# A table: one mutant a line.
EQUATION_MUTANTS = [
    Mutant("lstm-forget-gate", "equations.py", "torch.sigmoid(f) * c + ", "torch.sigmoid(i) * c + ", EQUATIONS),
    Mutant("lstm-output", "equations.py", "torch.sigmoid(o) * torch.tanh(c), c", "torch.sigmoid(o) * c, c", EQUATIONS),
    Mutant("gru-reset-gate", "equations.py", "torch.tanh(u_n + r * v_n)", "torch.tanh(r * u_n + v_n)", EQUATIONS),
    Mutant("gru-update-gate", "equations.py", "return n + z * (h - n)", "return h + z * (n - h)", EQUATIONS),
    Mutant("goru-update", "equations.py", "g * h + (1 - g) * candidate", "(1 - g) * h + g * candidate", EQUATIONS),
    Mutant("modrelu-bias", "equations.py", "torch.relu(torch.abs(z) + b)", "torch.relu(torch.abs(z) - b)", EQUATIONS),
    Mutant("scores-tanh", "equations.py", "(query.unsqueeze(-2) + keys).tanh_() @ v", "(query.unsqueeze(-2) + keys) @ v", EQUATIONS),
    Mutant("softmax-empty", "equations.py", "masked_fill(~filled, lowest), -1) * filled", "masked_fill(~filled, lowest), -1)", EQUATIONS),
    Mutant("sparse-threshold", "equations.py", "candidates.topk(top, -1)", "candidates.topk(top + 1, -1)", EQUATIONS),
]

FULL_ATTENTION_MUTANTS = [
    Mutant("attention-range-of-powers", "kernels/csrc/cuda/full_attention.cuh", "return fabsf(z) <= 126.f;", "return fabsf(z) <= 500.f;", f"{FULL_ATTENTION}::test_queries_and_keys_with_and_without_a_power"),
    Mutant("attention-large-exponent", "kernels/csrc/cuda/full_attention.cuh", "if (x < -1.f) return -x;", "if (x < -1.f) return x;", f"{FULL_ATTENTION}::test_queries_and_keys_with_and_without_a_power"),
    Mutant("attention-small-exponent", "kernels/csrc/cuda/full_attention.cuh", "return x < 0.f ? reciprocal(x) : log_two(x);", "return x < 0.f ? -126.f : log_two(x);", f"{FULL_ATTENTION}::test_queries_and_keys_with_and_without_a_power"),
    Mutant("attention-shared-rows", "kernels/csrc/cuda/full_attention.cuh", "(turn * WARPS + warp) * 2 * GROUP_FLOATS", "(0 * turn * WARPS + warp) * 2 * GROUP_FLOATS", f"{FULL_ATTENTION}::test_a_past_that_shared_memory_holds_in_part"),
    Mutant("attention-half-of-the-warps", "kernels/csrc/cuda/full_attention_sums.cuh", "rows[i].add(1.f, other);", "", f"{FULL_ATTENTION}::test_a_past_that_shared_memory_holds_in_part"),
    Mutant("attention-power-of-a-query", "kernels/csrc/cuda/full_attention_backward.cu", "beyond |= query.make_powers();", "query.make_powers();", f"{FULL_ATTENTION}::test_a_query_without_a_power"),
]

LAYER_MUTANTS = [
    Mutant("screening-ties", "layers/_relevancy.py", "gather(1, leaving) > least)", "gather(1, leaving) >= least)", RELEVANCY),
    Mutant("screening-weakest", "layers/_relevancy.py", "relevance.min(1, keepdim=True)", "relevance.max(1, keepdim=True)", RELEVANCY),
    Mutant("screening-decay", "layers/_relevancy.py", "torch.cat([recent, self.decay * older], 1)", "torch.cat([self.decay * recent, older], 1)", RELEVANCY),
    Mutant("screening-refresh", "layers/_relevancy.py", "F.pad(alpha[:, : self.buffer], (0, self.relevant))", "alpha", RELEVANCY),
    Mutant("stable-spectral-radius", "layers/_stable.py", "radius = lam / _lipschitz(layer, lipschitz)", "radius = lam * _lipschitz(layer, lipschitz)", f"{STABLE}::test_lipschitz_constants_widen_the_ball"),
    Mutant("stable-lstm-candidate", "layers/_stable.py", "radii = (room, room * (1 - forget), room / 4, room)", "radii = (room, room * (1 - forget), room, room)", f"{STABLE}::test_projected_lstm_is_certified"),
    Mutant("stable-lstm-forget", "layers/_stable.py", "radii = (room, room * (1 - forget), room / 4, room)", "radii = (room, room, room / 4, room)", f"{STABLE}::test_projected_lstm_is_certified"),
    Mutant("stable-input-bound", "layers/_stable.py", "_forget_only(share / bound)", "_forget_only(share)", f"{STABLE}::test_projected_lstm_is_certified {STABLE}::test_states_above_the_first_layer_count_with_their_dropout"),
    Mutant("stable-dropout-scale", "layers/_stable.py", "1 / (1 - layer.dropout) if layer.dropout < 1", "1.0 if layer.dropout < 1", f"{STABLE}::test_states_above_the_first_layer_count_with_their_dropout"),
    Mutant("stable-threshold", "layers/_stable.py", "(moduli - thresholds.gather(-1, k - 1)).clamp(min=0)", "(moduli - thresholds.gather(-1, k - 1) / 2).clamp(min=0)", f"{STABLE}::test_rows_go_to_their_nearest_point"),
    Mutant("spectral-scale", "layers/_spectral.py", "scale = bound.clamp(min=radius**2)", "scale = bound", f"{STABLE}::test_matrix_products_change_nothing_far_inside"),
    Mutant("spectral-far", "layers/_spectral.py", "return nearest if largest() <= _LARGEST else None", "return nearest", f"{STABLE}::test_matrix_products_leave_what_is_far_outside_to_others"),
    Mutant("stable-gradient-skew", "layers/_stable.py", "clipped_sum / (high + low)", "one_clipped / (high + low)", f"{STABLE}::test_gradients_of_the_projections"),
    Mutant("henaff-angles", "layers/_init.py", "uniform_(-math.pi, math.pi)", "uniform_(-math.pi / 2, math.pi / 2)", f"{ORTHOGONAL}::test_henaff_angles_fill_the_circle_and_cayley_angles_a_quarter"),
    Mutant("cayley-angles", "layers/_init.py", "return -2 * torch.atan(-torch.sqrt(", "return -torch.atan(-torch.sqrt(", f"{ORTHOGONAL}::test_the_cayley_map_of_its_published_blocks_gives_the_same_matrix {ORTHOGONAL}::test_henaff_angles_fill_the_circle_and_cayley_angles_a_quarter"),
    Mutant("skew-sign", "layers/_init.py", "skew[even + 1, even] = -angles", "skew[even + 1, even] = angles", f"{ORTHOGONAL}::test_initializations_are_orthogonal"),
    Mutant("variance-gain", "layers/_init.py", '{"linear": 1.0, "relu": 2.0}', '{"linear": 1.0, "relu": 1.0}', f"{INITIALIZATION}::test_moments {INITIALIZATION}::test_relu_is_he_initialization"),
    Mutant("goru-rotation", "layers/_orthogonal.py", "sin * a + cos * b", "cos * b - sin * a", f"{ORTHOGONAL}::test_a_rotation_of_two_coordinates_is_the_one_known"),
    Mutant("slow-rate", "layers/_orthogonal.py", '"lr": slow * lr', '"lr": lr', f"{ORTHOGONAL}::test_parameter_groups_give_skew_matrices_a_tenth_of_the_rate"),
]

TRAINING_MUTANTS = [
    Mutant("best-at-equality", "training/_best_so_far.py", "return value > other if task.higher_is_better else value < other", "return value >= other if task.higher_is_better else value <= other", f"{SUMMARIES}::test_best_so_far"),
    Mutant("best-direction", "training/_best_so_far.py", "return value > other if task.higher_is_better else value < other", "return value > other", f"{SUMMARIES}::test_best_so_far"),
    Mutant("best-of-nan", "training/_best_so_far.py", "value if math.isfinite(value) else None", "value", f"{SUMMARIES}::test_best_so_far"),
    Mutant("solved-at-equality", "training/_best_so_far.py", "return headline == task.solved or _is_better", "return _is_better", f"{SUMMARIES}::test_solved_at_the_exact_threshold"),
    Mutant("evaluation-weights", "training/_evaluation.py", "targets), task.weight(targets)))", "targets), 1.0))", f"{SUMMARIES}::test_evaluate_is_the_mean_weighted_by_batch_size"),
    Mutant("weighted-mean", "tasks/_task.py", "for m, w in counted) / total", "for m, w in counted) / len(counted)", f"{SUMMARIES}::test_evaluate_is_the_mean_weighted_by_batch_size"),
    Mutant("evaluation-state", "training/_evaluation.py", "if task.resets_state(step, batch_size, split):", "if not task.resets_state(step, batch_size, split):", f"{FIT} {SUMMARIES}"),
    Mutant("held-out-batches", "training/_evaluation.py", "return min(batches or available, available)", "return batches or available", f"{SUMMARIES}::test_held_out_batches_are_at_most_those_of_the_split"),
    Mutant("inverse-schedule", "training/_optimization.py", "lambda update: 1 / (update + 1))", "lambda update: 1 / (update + 2))", f"{FIT}::test_updates_match_gradient_descent_by_hand"),
    Mutant("inverse-sqrt-schedule", "training/_optimization.py", "1 / math.sqrt(update + 1)", "1 / (update + 1)", f"{FIT}::test_updates_match_gradient_descent_by_hand"),
    Mutant("step-schedule", "training/_optimization.py", "config.factor ** (update // config.step_every)", "config.factor ** (update // (config.step_every + 1))", f"{FIT}::test_updates_match_gradient_descent_by_hand"),
    Mutant("milestones-schedule", "training/_optimization.py", "bisect_right(milestones, update)", "bisect_right(milestones, update - 1)", f"{FIT}::test_updates_match_gradient_descent_by_hand"),
    Mutant("milestones-in-updates", "training/_learner.py", "[self.in_updates(milestone) for milestone in self.config.milestones]", "list(self.config.milestones)", f"{FIT}::test_milestones_are_epochs_where_training_is_counted_in_epochs"),
    Mutant("placement-created", "training/_placement.py", "else _creating(self._weights)", "else nullcontext()", PLACEMENT),
    Mutant("placement-loss", "training/_placement.py", "return loss if self._inputs is None else", "return loss if True else", PLACEMENT),
    Mutant("scaled-clip", "training/_batch_learner.py", "self.task.answer_share if self.config.scale_clip else 1.0", "1 / self.task.answer_share if self.config.scale_clip else 1.0", f"{FIT}::test_scaled_clip_follows_the_share_of_the_loss_that_asks_for_an_answer"),
    Mutant("distances-spectral", "training/_distances.py", "[-1].clamp(min=0).sqrt())", "[-1].clamp(min=0))", f"{DISTANCES}::test_distances_are_the_norms_of_the_differences"),
    Mutant("distances-sign", "training/_distances.py", "flat - second[name].view_as(flat)", "flat + second[name].view_as(flat)", f"{DISTANCES}::test_distances_are_the_norms_of_the_differences"),
    Mutant("distances-tied", "training/_distances.py", 'not (is_tied and name == "readout.weight")', "name", f"{DISTANCES}::test_tied_weights_count_once"),
]

REPORT_MUTANTS = [
    Mutant("horizon-tie", "report/_headline.py", "enough = horizon >= min(needs, lags)", "enough = horizon > min(needs, lags)", HEADLINE),
    Mutant("horizon-to-the-start", "report/_headline.py", "to_the_start = not horizon < lags", "to_the_start = horizon > lags", HEADLINE),
    Mutant("proved-before-seen", "report/_headline.py", '.status_of("lambda") == "certified":', '.status_of("lambda") != "certified":', HEADLINE),
    Mutant("far-gradient-tone", "report/_headline.py", "not relative >= _fraction(examination)", "not relative > _fraction(examination)", HEADLINE),
    Mutant("alarms-order", "report/_headline.py", "sorted(ranked, key=lambda pair: pair[0])", "ranked", HEADLINE),
    Mutant("quartile-band", "report/_view.py", "return spread[0], spread[1]", "return spread[1], spread[0]", VIEW),
    Mutant("deviation-band", "report/_view.py", "return y - spread, y + spread", "return y - spread, y", VIEW),
    Mutant("band-scale", "report/_view.py", "None if high is None else high * scale", "high", f"{VIEW} {CHARTS}"),
    Mutant("bound-cut", "report/_view.py", "BOUND_FACTOR = 1e6", "BOUND_FACTOR = 1e5", VIEW),
    Mutant("gradients-relative", "report/_charts/memory.py", "scale = 1 / largest if largest > 0 else 1.0", "scale = 1.0", CHARTS),
    Mutant("slopes-relative", "report/_charts/cost.py", "line.y / first", "line.y", CHARTS),
    Mutant("exponents-from-one", "report/_charts/dynamics.py", 'lines_of(shown, "exponents", start=1)', 'lines_of(shown, "exponents")', CHARTS),
    Mutant("quantiles-of-ratios", "report/_charts/dynamics.py", 'np.sort(view.finding.series["ratio"].astype(float))', 'view.finding.series["ratio"].astype(float)', CHARTS),
    Mutant("log-decades", "report/_log_axis.py", "LOG_DECADES = 16", "LOG_DECADES = 15", f"{CHARTS} {RENDERING}"),
    Mutant("block-means", "report/_downsampling.py", "return sums / np.outer(heights, widths), rows, columns", "return sums / np.outer(widths, heights).T * 2, rows, columns", DRAWING),
    Mutant("heat-map-row-0", "report/_interactive.py", 'described["autorange"] = "reversed"', 'described["autorange"] = True', DRAWING),
    Mutant("digits-of-a-value", "wording.py", "round(value, place)", "round(value, place + 1)", "tests/test_wording.py"),
    Mutant("spread-of-exponents", "report/_headline.py", 'error = 2 * _figure(examination, "lyapunov", "standard_error")', 'error = _figure(examination, "lyapunov", "standard_error")', HEADLINE),
    Mutant("spread-of-far-gradient", "report/_headline.py", "quartiles[:, _far_lag(examination, gradient)] / np.nanmax(gradient[1:])", "quartiles[:, _far_lag(examination, gradient)]", HEADLINE),
    Mutant("spread-of-bptt-window", "report/_headline.py", '_range_over(finding.spread.get("bptt_window_measured")', '_range_over(finding.spread.get("bptt_window")', f"{HEADLINE}::test_headlines_have_their_own_spread"),
    Mutant("common-color-range", "report/_color_range.py", "if 0 < high - low <= NARROW * narrowest", "if 0 < high - low", CHARTS),
    Mutant("colors-without-outliers", "report/_color_range.py", "known.max() > 2 * top > 0", "known.max() > top > 0", CHARTS),
]

THEORY_MUTANTS = [
    Mutant("kerg-total-derivative", "theory/attention/_paths.py", "C.append(E_i + torch.einsum", "C.append(2 * E_i + torch.einsum", PATHS),
    Mutant("kerg-hops", "theory/attention/_paths.py", "terms[i, 1 : i + 1] = torch.einsum", "terms[i, :i] = torch.einsum", PATHS),
    Mutant("kerg-X", "theory/attention/_jacobians.py", "torch.outer(blocks.deviation[k, slot], blocks.score_by_hidden[k, slot])", "torch.outer(blocks.hidden[j], blocks.score_by_hidden[k, slot])", JACOBIANS),
    Mutant("kerg-Y", "theory/attention/_jacobians.py", "gradient[slot] - blocks.weight[t] @ gradient)", "gradient[slot])", JACOBIANS),
    Mutant("kerg-score-slope", "theory/attention/_jacobians.py", "v * (1 - activation**2)", "v * (1 - activation)", JACOBIANS),
    Mutant("kerg-recurrent-factor", "theory/attention/_jacobians.py", "F[i + 1, i] += macro_partial(blocks, t + i + 1)", "pass", JACOBIANS),
    Mutant("kerg-lemma-8-slope", "theory/attention/_parameters.py", "pulled = hidden_total * slope  #", "pulled = hidden_total  #", PARAMETERS),
    Mutant("kerg-lemma-7-deviation", "theory/attention/_parameters.py", 'torch.einsum("tj,tmj->tm", pulled, blocks.deviation)', 'torch.einsum("tj,tmj->tm", pulled, blocks.deviation + 1)', PARAMETERS),
    Mutant("kerg-depth-bound", "theory/attention/_sparse.py", "eigenvalue**depth / kappa ** (depth + 1)", "eigenvalue**depth / kappa**depth", SPARSE),
    Mutant("kerg-dependency-depth", "theory/attention/_sparse.py", "depth[k] = 1 + depth[:k][reached].min()", "depth[k] = 1 + depth[:k][reached].max()", SPARSE),
    Mutant("kerg-effective-sparsity", "theory/attention/_sparse.py", "return 1 / (weight**2).sum(1)", "return 1 / (weight**2).sum(1).sqrt()", SPARSE),
    Mutant("kerg-uniform-gain", "theory/attention/_growth.py", "p = 1 + 1 / complex(t)", "p = 1 / complex(t)", UNIFORM),
    Mutant("kerg-growth-exponent", "theory/attention/_growth.py", "return eigenvalue / (1 - eigenvalue) - 1", "return eigenvalue - 1", UNIFORM),
    Mutant("kerg-inverse-rate", "theory/attention/_growth.py", "eigenvalue.real >= eigenvalue.real**2 + eigenvalue.imag**2", "eigenvalue.real >= eigenvalue.real**2", UNIFORM),
    Mutant("kerg-newton-sign", "theory/attention/_symmetric.py", "(-1) ** (l - 1) * S[l - 1]", "S[l - 1]", UNIFORM),
    Mutant("kerg-chi", "theory/attention/_uniform.py", "columns[0][0] += 1", "columns[0][0] += 0", UNIFORM),
    Mutant("kerg-theta-recursion", "theory/attention/_uniform.py", "_below(columns[-1]) + _below(weight", "columns[-1] + _below(weight", UNIFORM),
    Mutant("kerg-chi-by-theta", "theory/attention/_uniform.py", "/ (t + k - i) for i in range(s + 1))", "/ (t + k) for i in range(s + 1))", UNIFORM),
    Mutant("kerg-lemma-11", "theory/attention/_uniform.py", "for r in range(s + 1)) / (t + k - s)", "for r in range(s + 1)) / (t + k)", UNIFORM),
    Mutant("levine-multisets", "theory/separation/_bounds.py", "math.comb(kinds + size - 1, size) if kinds", "math.comb(kinds + size, size) if kinds", BOUNDS),
    Mutant("levine-shallow-rank", "theory/separation/_bounds.py", "return min(channels, inputs**half)", "return min(channels, inputs * half)", BOUNDS),
    Mutant("levine-ceiling", "theory/separation/_bounds.py", "channels * (multiset_coefficient(channels, half) - missing)", "channels * multiset_coefficient(channels, half)", BOUNDS),
    Mutant("levine-input-degree", "theory/separation/_bounds.py", "multiset_coefficient(length - time + 1, depth - 1)", "multiset_coefficient(length - time, depth - 1)", BOUNDS),
    Mutant("miller-tanh-smoothness", "theory/stability/_constants.py", "4 / (3 * math.sqrt(3)), 1.0)", "4 / (3 * math.sqrt(2)), 1.0)", CONSTANTS),
    Mutant("miller-read", "theory/stability/_constants.py", "math.hypot(state_bound, input_bound, *(1.0 for _ in biases))", "math.hypot(state_bound, input_bound)", f"{CONSTANTS}::test_smoothness_of_a_tanh_unit_is_reached"),
    Mutant("miller-state-gap", "theory/stability/_constants.py", "return system.lam**k * system.start_gap", "return system.lam ** (k + 1) * system.start_gap", CONSTANTS),
    Mutant("miller-output-bound", "theory/stability/_constants.py", "return L_f * state_gap(system, k)", "return state_gap(system, k)", CONSTANTS),
    Mutant("miller-context-length", "theory/stability/_constants.py", "/ -math.log(system.lam) - 1e-12)", "/ (1 - system.lam) - 1e-12)", CONSTANTS),
    Mutant("miller-gradient-gap", "theory/stability/_descent.py", "lam**k * early + k * lam ** (k - 1) * late", "lam**k * early + k * lam**k * late", DESCENT),
    Mutant("miller-gradient-gap-halved", "theory/stability/_descent.py", "lam**k * early + k * lam ** (k - 1) * late", "(lam**k * early + k * lam ** (k - 1) * late) / 2", DESCENT),
    Mutant("miller-smoothness-cube", "theory/stability/_descent.py", "loss.L_p * L_w * L_w * system.beta_hh / gap**3", "loss.L_p * L_w * L_w * system.beta_hh / gap**2", DESCENT),
    Mutant("miller-proposition-2", "theory/stability/_descent.py", "min(float(steps), 1 + 1 / ab) if ab", "min(float(steps), 1 / ab) if ab", DESCENT),
    Mutant("miller-lemma-5-bias", "theory/stability/_lstm.py", "_norm(U[1]) * input_bound + b[1].abs().max())", "_norm(U[1]) * input_bound)", LSTM),
    Mutant("miller-comparison", "theory/stability/_lstm.py", "+ at.i[:, None] * W[2]", "+ at.i[:, None] * W[2] / 4", LSTM),
    Mutant("miller-drift", "theory/stability/_lstm.py", "(w_i + cell * w_f) / 4 + w_g", "(w_i + w_f) / 4 + w_g", LSTM),
    Mutant("miller-iterations", "theory/stability/_lstm.py", "math.sqrt(2 * hidden_size)", "math.sqrt(hidden_size)", LSTM),
    Mutant("ribeiro-amplification", "theory/smoothness/_cost.py", "_powers(L_f**2, N).cumsum(0).sqrt()", "_powers(L_f, N).cumsum(0).sqrt()", COST),
    Mutant("ribeiro-output-bound", "theory/smoothness/_cost.py", "reference + joint.L_g * amplification", "reference + amplification", COST),
    Mutant("ribeiro-cost-lipschitz", "theory/smoothness/_cost.py", "(loss.steepness(target, outputs) * S)[1:].mean()", "(loss.steepness(target, outputs) * S).mean()", COST),
    Mutant("ribeiro-gradient-lipschitz", "theory/smoothness/_cost.py", "loss.K3 * target * L_J + L_Jy", "target * L_J + L_Jy", COST),
    Mutant("ribeiro-gradient-halved", "theory/smoothness/_cost.py", "return float((loss.K3 * target * L_J + L_Jy)[1:].mean())", "return float((loss.K3 * target * L_J + L_Jy)[1:].mean()) / 2", COST),
    Mutant("ribeiro-path-power", "theory/smoothness/_cost.py", "t[:, None] - t[None, :] - 1).clamp(min=0)", "t[:, None] - t[None, :]).clamp(min=0)", COST),
    Mutant("ribeiro-hadamard-columns", "theory/smoothness/_entropy.py", "vector_norm(jacobians, dim=-2)", "vector_norm(jacobians, dim=-1)", ENTROPY_THEORY),
    Mutant("ribeiro-entropy-bound", "theory/smoothness/_entropy.py", "state_size * math.log(L_f) if L_f", "math.log(L_f) if L_f", ENTROPY_THEORY),
    Mutant("ribeiro-cross-entropy", "theory/smoothness/_losses.py", "K3=1.0, K4=1 / 4", "K3=1.0, K4=1 / 5", LOSSES),
    Mutant("ribeiro-product", "theory/smoothness/_losses.py", "math.prod(bounds[:i]) * math.prod(bounds[i + 1 :])", "math.prod(bounds[:i])", LOSSES),
    Mutant("ribeiro-stability-limit", "theory/smoothness/_chaos.py", "(1.25 + math.sqrt(10)) / 5.625", "(1.25 + math.sqrt(10)) / 5.5", CHAOS),
    Mutant("ribeiro-sensitivity", "theory/smoothness/_sensitivity.py", "D = A @ D + B", "D = A @ D", SENSITIVITY),
    Mutant("ribeiro-invariant-ball", "theory/smoothness/_invariance.py", "return drive / (1 - contraction)", "return drive / (1 + contraction)", CHAOS),
    Mutant("nabli-dropout", "theory/foundations/_dropout.py", "fit + keep * (1 - keep) *", "fit + (1 - keep) *", REGULARIZATION),
    Mutant("nabli-running-average", "theory/foundations/_momentum.py", "return alpha, epsilon / (1 - alpha)", "return alpha, epsilon", REGULARIZATION),
    Mutant("nabli-bias-correction", "theory/foundations/_momentum.py", "averages / (1 - beta**n)", "averages / (1 - beta)", REGULARIZATION),
    Mutant("nabli-gradient-bound", "theory/foundations/_vanishing.py", "matrix_norm(W, ord=2))) ** steps", "matrix_norm(W, ord=2))) ** (steps - 1)", RECURRENCES),
    Mutant("nabli-bidirectional", "theory/foundations/_bidirectional.py", "gradient[t] @ weights.V + through_state", "through_state", RECURRENCES),
    Mutant("nabli-uniform-scale", "theory/foundations/_initialization.py", "else 3 * variance", "else 2 * variance", VARIANCES),
    Mutant("miller-truncated-age", "theory/stability/_truncation.py", "missing = self.k - 1 - state.clock[0]", "missing = self.k - state.clock[0]", f"{TRUNCATED}::test_sequences_of_different_age_in_one_batch"),
    Mutant("miller-truncated-begin", "theory/stability/_truncation.py", "missing == age", "missing == age + 1", f"{TRUNCATED}::test_sequences_of_different_age_in_one_batch"),
    Mutant("miller-truncated-slide", "theory/stability/_truncation.py", "whole[1:].unfold(0, self.k, 1)", "whole[:-1].unfold(0, self.k, 1)", f"{TRUNCATED}::test_all_windows_at_once"),
    Mutant("miller-truncated-window", "theory/stability/_truncation.py", "self._run(whole[: self.k])[seen:]", "self._run(whole[: self.k])[: len(whole) - seen]", f"{TRUNCATED}::test_pieces_give_the_whole"),
    Mutant("miller-identity-gradient", "theory/stability/_counterexamples.py", "i * a ** (i - 1) for i in range(1, T)", "i * a**i for i in range(1, T)", f"{TRUNCATED}::test_gradient_of_the_identity_task"),
    Mutant("miller-lstm-bend", "theory/stability/_lstm_smoothness.py", "TANH.smoothness * cell[:, :, None] * cell[:, None, :]", "0.5 * TANH.smoothness * cell[:, :, None] * cell[:, None, :]", f"{LSTM}::test_derivatives_of_one_unit_are_bounded_entry_by_entry"),
    Mutant("miller-lstm-mixed", "theory/stability/_lstm_smoothness.py", "turn[:, 3, :] = turn[:, :, 3] = cell / 4", "turn[:, 3, :] = turn[:, :, 3] = cell / 5", f"{LSTM}::test_derivatives_of_one_unit_are_bounded_entry_by_entry"),
    Mutant("miller-lstm-read", "theory/stability/_lstm_smoothness.py", "math.sqrt(U.shape[2]) * input_bound", "input_bound", LSTM),
    Mutant("ribeiro-gaussian-entropy", "theory/smoothness/_entropy.py", "0.5 * torch.linalg.slogdet(2 * math.pi * math.e * covariance)", "0.5 * torch.linalg.slogdet(2 * math.pi * covariance)", ENTROPY_THEORY),
    Mutant("nabli-normalized-gradient", "theory/foundations/_normalization.py", "(u @ gradient) / u.square().sum() * u", "(u @ gradient) / u.norm() * u", f"{REGULARIZATION}::test_gradient_of_a_normalized_weight"),
    Mutant("nabli-batch-normalization", "theory/foundations/_normalization.py", "sigma = (u @ covariance @ u).sqrt()", "sigma = u @ covariance @ u", REGULARIZATION),
    Mutant("levine-effective-rank", "theory/separation/_spectrum.py", "p = spectra / np.where(total > 0, total, 1.0)", "p = spectra**2 / np.where(total > 0, total, 1.0)", f"{SPECTRUM}::test_effective_rank_and_distance_in_closed_form"),
    Mutant("levine-separable-distance", "theory/separation/_spectrum.py", "rest = (shares[..., 1:] ** 2).sum(axis=-1)", "rest = shares[..., 1:].sum(axis=-1)", f"{SPECTRUM}::test_effective_rank_and_distance_in_closed_form"),
    Mutant("levine-reward", "theory/separation/_assignment.py", "omega**color * bucket[color - 1]", "omega**color", f"{ASSIGNMENT}::test_best_reward_is_the_best_trajectory"),
    Mutant("levine-equilibration", "theory/separation/_rank.py", "np.ldexp(matrix, -exponents)", "np.ldexp(matrix, exponents)", f"{RANK}::test_float_rank_sees_through_bad_scaling"),
    Mutant("levine-carry", "theory/separation/_circuit.py", "return apply(circuit.output_weights[None], state, circuit.prime)[..., 0]", "return state.sum(-1)", f"{CIRCUIT}::test_outputs_are_the_recurrence_in_exact_integers"),
    Mutant("levine-joining-bonds", "theory/separation/_network.py", "node.time == network.length // 2 + 1", "node.time == network.length // 2", NETWORK),
    Mutant("levine-cut-cost", "theory/separation/_network.py", "math.log(network.bond(leg))", "network.bond(leg)", f"{NETWORK}::test_the_shallow_cut_is_theorem_1s_rank"),
]

SYSTEM_MUTANTS = [
    Mutant("henon-map", "systems/_maps.py", "1 - self.a * first**2 + second", "1 - self.a * first + second", f"{SYSTEMS}::test_the_henon_map_is_its_formula"),
    Mutant("lorenz-velocity", "systems/_maps.py", "x * y - self.beta * z", "x * y + self.beta * z", SYSTEMS),
    Mutant("delay-line", "systems/_memories.py", "torch.cat([x[None], state[..., :-1]], -1)", "torch.cat([x[None], state[..., 1:]], -1)", f"{SYSTEMS}::test_the_delay_line_repeats_its_input"),
    Mutant("random-network-gain", "systems/_networks.py", "self.gain / math.sqrt(units) * normal", "self.gain / units * normal", f"{SYSTEMS}::test_the_random_tanh_network_has_its_gain"),
    Mutant("known-within-error", "systems/_system.py", "<= min(self.tolerance, stated)", "<= max(self.tolerance, stated)", f"{SYSTEMS}::test_a_known_figure_is_compared_with_its_tolerance"),
]

AGENT_MUTANTS = [
    Mutant("rl-reward-unit", "rl/_reward_scale.py", "np.sqrt(self._squares / self._count)", "np.sqrt(self._squares) / self._count", REWARDS),
    Mutant("rl-reward-sums-end", "rl/_reward_scale.py", "            self._sums[end] = 0.0\n", "", REWARDS),
    Mutant("rl-reward-discount", "rl/_reward_scale.py", "reward + self.gamma * self._sums", "reward + self._sums", REWARDS),
    Mutant("rl-reward-scale-lost", "rl/_ppo.py", 'self.reward_scale.restore(play["rewards"])', "pass", "tests/rl/test_tmaze_runs.py::test_resumed_runs_write_the_same_bytes"),
    Mutant("rl-rewards-not-scaled", "rl/_ppo.py", "rewards = rewards / self.reward_scale.update(paid, ends)", "self.reward_scale.update(paid, ends)", REWARDS),
    Mutant("rl-advantages-lambda", "rl/_ppo.py", "gamma * lam * goes_on[t] * advantage", "gamma * goes_on[t] * advantage", f"{PPO}::test_advantages_are_the_sums_that_define_them"),
    Mutant("rl-advantages-end", "rl/_ppo.py", "goes_on = (~ends).to(rewards)", "goes_on = torch.ones_like(rewards)", f"{PPO}::test_advantages_are_the_sums_that_define_them"),
    Mutant("rl-advantages-value", "rl/_ppo.py", "gamma * goes_on[t] * last - values[t]", "goes_on[t] * last - values[t]", f"{PPO}::test_advantages_are_the_sums_that_define_them"),
    Mutant("rl-limit-of-time", "rl/_ppo.py", "reward[rows] += self.config.gamma * frame.final_value", "reward[rows] += frame.final_value", f"{PPO}::test_what_a_limit_of_time_cut_off_counts_with_its_value"),
    Mutant("rl-clipped-objective", "rl/_ppo.py", "-torch.minimum(ratio * advantage, clipped * advantage)", "-torch.maximum(ratio * advantage, clipped * advantage)", f"{PPO}::test_loss_is_the_clipped_objective"),
    Mutant("rl-normalized-always", "rl/_ppo.py", "if self.config.normalize_advantages:", "if True:", f"{PPO}::test_advantages_are_normalized_unless_told_otherwise"),
    Mutant("rl-entropy-sign", "rl/_ppo.py", "- self.config.entropy * entropy", "+ self.config.entropy * entropy", f"{PPO}::test_loss_is_the_clipped_objective"),
    Mutant("rl-value-loss", "rl/_ppo.py", "value_loss = 0.5 * (values", "value_loss = (values", f"{PPO}::test_loss_is_the_clipped_objective"),
    Mutant("rl-kl", "rl/_ppo.py", "(ratio - 1 - log_ratio).mean()", "(ratio - 1 + log_ratio).mean()", f"{PPO}::test_loss_is_the_clipped_objective"),
    Mutant("rl-success", "rl/_evaluation.py", "total > self.success", "total >= self.success", f"{PPO}::test_means_are_over_the_first_episodes_of_each_environment"),
    Mutant("rl-evaluation-share", "rl/_evaluation.py", "if share[row]:\n                    share[row] -= 1", "if True:\n                    share[row] -= 1", f"{PPO}::test_means_are_over_the_first_episodes_of_each_environment"),
    Mutant("rl-lesson-passed", "rl/_curriculum.py", "np.mean(self._succeeded) >= PASSED", "np.mean(self._succeeded) > PASSED", "tests/rl/test_curriculum.py::test_a_lesson_is_not_left_before_19_of_20_episodes_succeed"),
    Mutant("rl-lesson-limit", "rl/_curriculum.py", "self._frames >= LIMIT", "self._frames > LIMIT", "tests/rl/test_curriculum.py::test_a_lesson_that_is_not_passed_is_left_at_its_limit"),
    Mutant("rl-lesson-cut", "rl/_curriculum.py", "truncated = ~transition.terminated", "truncated = transition.truncated", "tests/rl/test_curriculum.py::test_the_next_lesson_begins_in_every_environment"),
    Mutant("open-forget-gates", "training/_model.py", "bias[self.hidden_size : 2 * self.hidden_size] += amount", "bias[: self.hidden_size] += amount", "tests/training/test_model.py::test_forget_gates_begin_open"),
    Mutant("gain-of-the-head", "training/_model.py", "nn.init.orthogonal_(self.head.weight, math.sqrt(2))", "nn.init.orthogonal_(self.head.weight)", "tests/training/test_model.py::test_a_head_is_a_relu_layer_before_the_readout"),
    Mutant("steps-of-chaos", "scopes/_lyapunov.py", "steps - discard < ENOUGH_FOR_CHAOS", "steps - discard <= ENOUGH_FOR_CHAOS", f"{LYAPUNOV}::test_a_few_steps_are_too_few_to_call_it_chaos"),
    Mutant("rl-arrays-kept", "rl/_play.py", "reward=np.array(transition.reward)", "reward=transition.reward", "tests/rl/test_fleet_contract.py::test_a_fleet_may_write_over_its_arrays"),
    Mutant("rl-pieces", "rl/_pieces.py", "begins[:, 0] = True", "begins[:, -1] = True", f"{PPO}::test_pieces_hold_every_frame_once_and_begin_where_episodes_do"),
]

STUDY_MUTANTS = [
    Mutant("verdict-worse-partly", "studies/_verdict.py", "self.holds * recorded.asked < recorded.holds * self.asked", "self.holds < recorded.holds", f"{VERDICTS}::test_worse_than_recorded"),
    Mutant("verdict-worse-open", "studies/_verdict.py", 'return recorded.word != "contradicted"', "return True", f"{VERDICTS}::test_worse_than_recorded"),
    Mutant("verdict-contradicted", "studies/_verdict.py", 'if "contradicted" in words:', 'if words == {"contradicted"}:', f"{VERDICTS}::test_a_study_is_judged_by_its_headline_claims"),
    Mutant("verdict-headline", "studies/_verdict.py", "headline = [claim for claim in claims if claim.headline]", "headline = list(claims)", f"{VERDICTS}::test_a_study_is_judged_by_its_headline_claims"),
    Mutant("verdict-form", "studies/_verdict.py", 'for claim in headline if claim.form != "printed"]', "for claim in headline]", VERDICTS),
    Mutant("verdict-stands-in", "studies/_verdict.py", 'if corrected.word == "reproduced" else OPEN', 'if corrected.word == "open" else OPEN', f"{VERDICTS}::test_what_holds_only_as_corrected_is_contradicted_as_printed"),
    Mutant("verdict-beside", "studies/_verdict.py", "if not claim.headline])", "if claim.headline])", f"{VERDICTS}::test_what_fails_beside_the_headline_is_counted"),
    Mutant("cells-known-none", "studies/_cells.py", "        if not found:\n            raise UnknownCell", "        if found is None:\n            raise UnknownCell", f"{FAILURES}::test_known_cells_that_there_are_none_of_end_a_check"),
    Mutant("cells-infinite", "studies/_cells.py", 'math.inf if self.number == "infinity"', 'math.nan if self.number == "infinity"', f"{FAILURES}::test_what_was_not_run_leaves_no_median"),
    Mutant("study-got-more-jobs", "studies/_reproduce.py", "and not complete and not _has_all_of(old, merged)", "and not complete", f"{REPRODUCE}::test_a_study_that_got_more_jobs_shows_what_there_is_of_them"),
    Mutant("study-mark", "studies/_reproduce.py", "return read_json(path / MARK) == MARK_CONTENT", "return (path / MARK).is_file()", "tests/studies/test_refused_folders.py::test_a_folder_of_something_else_is_refused"),
    Mutant("study-worse-corrected", "studies/_reproduce.py", "result.corrected.is_worse_than(recorded.corrected)", "result.corrected.is_worse_than(recorded.printed)", f"{REPRODUCE}::test_a_corrected_claim_that_no_longer_holds_is_worse"),
    Mutant("study-worse-kept", "studies/_reproduce.py", "_worse(again, recorded, old))", "())", f"{REPRODUCE}::test_a_changed_cell_of_the_record_turns_the_verdict_though_nothing_is_run"),
    Mutant("study-tried-again", "studies/_pages.py", "cell = (row, record.again.get(column, column))", "cell = (row, column)", "tests/studies/test_shown_cells.py::test_a_published_cell_that_was_tried_again_counts_once"),
    Mutant("study-all-seeds", "studies/_merge.py", "return theirs <= ours if theirs", "return len(theirs) <= len(ours) if theirs", "tests/studies/test_missing.py::test_a_line_whose_seeds_are_known_gives_way_to_one_of_all_of_them_only"),
    Mutant("statement-side", "studies/_statements.py", "side = _MIRRORED[relation] if is_negative else relation", "side = relation", "tests/studies/test_statements.py"),
    Mutant("study-time-is-up", "studies/_deadline.py", "if jobs and time.monotonic() >= self.moment:", "if time.monotonic() >= self.moment:", f"{REPRODUCE}::test_the_time_can_be_up_while_jobs_run"),
    Mutant("study-not-run", "studies/_not_run.py", "not set(job.needs).intersection(one.missing)", "not job.needs", f"{MISSING}::test_what_was_not_run_is_said_with_the_command"),
    Mutant("study-missing-needs", "studies/_plan.py", "{name, *(() if name in self.done else jobs[name].needs)}", "{name}", f"{MISSING}::test_what_a_missing_measurement_needs_is_run_again"),
    Mutant("study-missing-recorded", "studies/_record.py", "if not set(self.jobs) <= set(names):", "if False:", f"{MISSING}::test_results_of_other_settings_are_not_taken_for_recorded"),
    Mutant("study-merge-complete", "studies/_merge.py", "if old.is_complete:", "if False:", f"{MISSING}::test_two_results_of_a_seed_are_joined_cell_by_cell"),
    Mutant("study-merge-all", "studies/_merge.py", "old.ended <= new.ended", "old.ended < new.ended", f"{MISSING}::test_two_results_of_a_seed_are_joined_cell_by_cell"),
    Mutant("study-merge-cells", "studies/_merge.py", "old.values | new.values", "new.values | old.values", f"{MISSING}::test_two_results_of_a_seed_are_joined_cell_by_cell"),
    Mutant("study-derived-cells", "studies/_reproduce.py", "with_derived_cells(study, scale, by_seed[seed], drawn, recorded_charts)", "by_seed[seed]", f"{MISSING}::test_what_follows_from_cells_is_made_of_those_of_all_calls"),
    Mutant("study-merge-cost", "studies/_reproduce.py", "for name in here if name not in counted)", "for name in here)", f"{MISSING}::test_a_job_that_was_run_again_costs_once"),
    Mutant("verdict-unknown", "studies/_verdict.py", "return _from_counts(sum(known), len(known))", "return _from_counts(sum(known), len(answers))", f"{VERDICTS}::test_a_claim_over_seeds"),
    Mutant("verdict-median", "studies/_verdict.py", "claim.holds(medians(by_seed))", "claim.holds(by_seed[0])", f"{VERDICTS}::test_a_claim_of_the_median_and_of_all_seeds"),
    Mutant("verdict-partly", "studies/_verdict.py", '"partly" if holds else "contradicted"', '"partly"', f"{VERDICTS}::test_a_claim_over_seeds"),
    Mutant("claim-bounds", "studies/_study.py", "value >= self.at_least", "value > self.at_least", VERDICTS),
]

KERNEL_MUTANTS = [
    Mutant("operator-autocast", "kernels/_autograd.py", "with without_autocast(run.results[0]):", "if True:", f"{FRAME}::test_a_backward_pass_inside_autocast_is_not_rounded"),
    Mutant("rotation-shift", "layers/_orthogonal.py", 'shift = 0 if layout == "fft" else k % 2', "shift = 0", f"{ORTHOGONAL}::test_fft_rotations_mix_all_coordinates_and_tunable_ones_only_neighbors"),
]

# fmt: on
MUTANTS = [
    *EQUATION_MUTANTS,
    *FULL_ATTENTION_MUTANTS,
    *LAYER_MUTANTS,
    *KERNEL_MUTANTS,
    *TRAINING_MUTANTS,
    *REPORT_MUTANTS,
    *THEORY_MUTANTS,
    *SYSTEM_MUTANTS,
    *AGENT_MUTANTS,
    *STUDY_MUTANTS,
    *SCOPE_MUTANTS,
    *CHANGING_SCOPE_MUTANTS,
]
