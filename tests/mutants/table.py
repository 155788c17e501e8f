"""Small changes to formulas and figures, each of which some test must notice: what `make mutants` runs.

A mutant names the file (below src/mnemoscope), text that occurs in it exactly once, what replaces it, and the tests that
must fail then: test files or single tests, as few and as fast as will do.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change of the source, and the tests that must notice it, separated by spaces."""

    name: str
    file: str
    original: str
    replacement: str
    tests: str


EQUATIONS = "tests/test_equations.py"
ORDINARY = "tests/scopes/test_ordinary_models.py"
IDS = "tests/adapters/test_ids.py"
RELEVANCY = "tests/layers/test_relevancy.py"
STABLE = "tests/layers/test_stable.py"
ORTHOGONAL = "tests/layers/test_orthogonal.py"
INITIALIZATION = "tests/layers/test_initialization.py"
SUMMARIES = "tests/training/test_summaries.py"
FIT = "tests/training/test_fit.py"
HEADLINE = "tests/report/test_headline.py"
VIEW = "tests/report/test_view.py"
CHARTS = "tests/report/test_chart_values.py"
DRAWING = "tests/report/test_drawing.py"
RENDERING = "tests/report/test_rendering.py"
KERG_STATEMENTS = "tests/theory/test_kerg_statements.py"
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
BOUNDARIES = "tests/scopes/test_decision_boundaries.py"
HORIZON_BOUNDARIES = "tests/scopes/test_horizon_boundaries.py"
TRUNCATION_BOUNDARIES = "tests/scopes/test_truncation_boundaries.py"
CLOSED_FORM = "tests/scopes/test_figures_in_closed_form.py"
SMOOTHNESS = CLOSED_FORM
SIGNAL = f"{CLOSED_FORM}::test_signal_figures_are_ratios_of_their_series"
WEIGHT_GAIN = "tests/scopes/test_signal_scope.py::test_weight_gain_of_a_parametrized_weight"
ATTENTION = "tests/scopes/test_attention_scope.py"
REPEAT = "tests/scopes/test_repeat.py"
ATTRACTORS = "tests/scopes/test_attractors.py"
EXPLODING = "tests/scopes/test_exploding.py"
LYAPUNOV = "tests/scopes/test_lyapunov.py"
HORIZON = "tests/scopes/test_horizon_scope.py"
HORIZON_OF_LOSSES = "tests/scopes/test_horizon_of_losses.py"
LANDSCAPE = "tests/scopes/test_landscape.py"
TRUNCATION = "tests/scopes/test_truncation_scope.py"
CHUNKS = "tests/scopes/test_truncation_chunks.py"
STABILITY = "tests/scopes/test_stability_scope.py"
ENTROPY = "tests/scopes/test_entropy_scope.py"
CERTIFICATES = "tests/scopes/test_certificates.py"
SYSTEMS = "tests/systems/test_known_systems.py"
DISTANCES = "tests/training/test_distances.py"
TRUNCATED = "tests/theory/test_stability_truncated.py"
SPECTRUM = "tests/theory/test_levine_spectrum.py"
ASSIGNMENT = "tests/theory/test_levine_assignment.py"
CIRCUIT = "tests/theory/test_levine_circuit.py"
RANK = "tests/theory/test_levine_rank.py"
NETWORK = "tests/theory/test_levine_network.py"
CONJECTURE = "tests/theory/test_levine_conjecture.py"
PPO = "tests/rl/test_ppo.py"
VERDICTS = "tests/studies/test_verdicts.py"
FAILURES = "tests/studies/test_failures.py"
REPRODUCE = "tests/studies/test_reproduce.py"
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
    Mutant("weighted-mean", "tasks/_task.py", "zip(metrics, weights, strict=True)) / total", "zip(metrics, weights, strict=True)) / len(metrics)", f"{SUMMARIES}::test_evaluate_is_the_mean_weighted_by_batch_size"),
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
    Mutant("log-decades", "report/_chart.py", "LOG_DECADES = 16", "LOG_DECADES = 15", f"{CHARTS} {RENDERING}"),
    Mutant("block-means", "report/_downsampling.py", "return sums / np.outer(heights, widths), rows, columns", "return sums / np.outer(widths, heights).T * 2, rows, columns", DRAWING),
    Mutant("heat-map-row-0", "report/_interactive.py", 'described["autorange"] = "reversed"', 'described["autorange"] = True', DRAWING),
    Mutant("spread-of-exponents", "report/_headline.py", "± {2 * error:.1g}", "± {error:.1g}", HEADLINE),
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
    Mutant("kerg-lemma-11", "theory/attention/_uniform.py", "for r in range(s + 1)) / (t + k - s)", "for r in range(s + 1)) / (t + k)", UNIFORM),
    Mutant("levine-multisets", "theory/separation/_bounds.py", "math.comb(kinds + size - 1, size) if kinds", "math.comb(kinds + size, size) if kinds", BOUNDS),
    Mutant("levine-shallow-rank", "theory/separation/_bounds.py", "return min(channels, inputs**half)", "return min(channels, inputs * half)", BOUNDS),
    Mutant("levine-ceiling", "theory/separation/_bounds.py", "channels * (multiset_coefficient(channels, half) - missing)", "channels * multiset_coefficient(channels, half)", BOUNDS),
    Mutant("levine-input-degree", "theory/separation/_bounds.py", "multiset_coefficient(length - time + 1, depth - 1)", "multiset_coefficient(length - time, depth - 1)", BOUNDS),
    Mutant("miller-tanh-smoothness", "theory/stability/_constants.py", "4 / (3 * math.sqrt(3)), 1.0)", "4 / (3 * math.sqrt(2)), 1.0)", CONSTANTS),
    Mutant("miller-read", "theory/stability/_constants.py", "math.sqrt(state_bound**2 + input_bound**2 + len(biases))", "math.sqrt(state_bound**2 + input_bound**2)", f"{CONSTANTS}::test_smoothness_of_a_tanh_unit_is_reached"),
    Mutant("miller-state-gap", "theory/stability/_constants.py", "return system.lam**k * system.start_gap", "return system.lam ** (k + 1) * system.start_gap", CONSTANTS),
    Mutant("miller-output-bound", "theory/stability/_constants.py", "return L_f * state_gap(system, k)", "return state_gap(system, k)", CONSTANTS),
    Mutant("miller-context-length", "theory/stability/_constants.py", "/ -math.log(system.lam) - 1e-12)", "/ (1 - system.lam) - 1e-12)", CONSTANTS),
    Mutant("miller-gradient-gap", "theory/stability/_descent.py", "lam**k * early + k * lam ** (k - 1) * late", "lam**k * early + k * lam**k * late", DESCENT),
    Mutant("miller-gradient-gap-halved", "theory/stability/_descent.py", "lam**k * early + k * lam ** (k - 1) * late", "(lam**k * early + k * lam ** (k - 1) * late) / 2", DESCENT),
    Mutant("miller-smoothness-cube", "theory/stability/_descent.py", "loss.L_p * L_w**2 * system.beta_hh / gap**3", "loss.L_p * L_w**2 * system.beta_hh / gap**2", DESCENT),
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
    Mutant("miller-truncated-slide", "theory/stability/_truncation.py", "whole[1:].unfold(0, self.k, 1)", "whole[:-1].unfold(0, self.k, 1)", f"{TRUNCATED}::test_all_windows_at_once"),
    Mutant("miller-truncated-window", "theory/stability/_truncation.py", "self._run(whole[: self.k])[seen:]", "self._run(whole[: self.k])[: len(whole) - seen]", f"{TRUNCATED}::test_pieces_give_the_whole"),
    Mutant("miller-identity-gradient", "theory/stability/_counterexamples.py", "i * a ** (i - 1) for i in range(1, T)", "i * a**i for i in range(1, T)", f"{TRUNCATED}::test_gradient_of_the_identity_task"),
    Mutant("miller-lstm-bend", "theory/stability/_lstm_smoothness.py", "TANH.smoothness * cell[:, :, None] * cell[:, None, :]", "0.5 * TANH.smoothness * cell[:, :, None] * cell[:, None, :]", f"{LSTM}::test_derivatives_of_one_unit_are_bounded_entry_by_entry"),
    Mutant("miller-lstm-mixed", "theory/stability/_lstm_smoothness.py", "turn[:, 3, :] = turn[:, :, 3] = cell / 4", "turn[:, 3, :] = turn[:, :, 3] = cell / 5", f"{LSTM}::test_derivatives_of_one_unit_are_bounded_entry_by_entry"),
    Mutant("miller-lstm-read", "theory/stability/_lstm_smoothness.py", "U.shape[2] * input_bound**2 + sum", "input_bound**2 + sum", LSTM),
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
    Mutant("rl-advantages-lambda", "rl/_ppo.py", "gamma * lam * goes_on[t] * following", "gamma * goes_on[t] * following", f"{PPO}::test_advantages_are_the_sums_that_define_them"),
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
    Mutant("study-got-more-jobs", "studies/_reproduce.py", "and not complete and not _has_all_of(old, new)", "and not complete", f"{REPRODUCE}::test_a_study_that_got_more_jobs_shows_what_there_is_of_them"),
    Mutant("verdict-unknown", "studies/_verdict.py", "return _from_counts(sum(known), len(known))", "return _from_counts(sum(known), len(answers))", f"{VERDICTS}::test_a_claim_over_seeds"),
    Mutant("verdict-median", "studies/_verdict.py", "claim.holds(medians(by_seed))", "claim.holds(by_seed[0])", f"{VERDICTS}::test_a_claim_of_the_median_and_of_all_seeds"),
    Mutant("verdict-partly", "studies/_verdict.py", '"partly" if holds else "contradicted"', '"partly"', f"{VERDICTS}::test_a_claim_over_seeds"),
    Mutant("claim-bounds", "studies/_study.py", "value >= self.at_least", "value > self.at_least", VERDICTS),
]

SCOPE_MUTANTS = [
    Mutant("smoothness-growth", "scopes/_smoothness.py", "factor = math.exp(rate)", "factor = math.exp(rate / 2)", SMOOTHNESS),
    Mutant("smoothness-gradient-growth", "scopes/_smoothness.py", "_growth(counts, gradient_slope)", "_growth(counts, cost_slope)", SMOOTHNESS),
    Mutant("smoothness-S-squared", "scopes/_smoothness.py", "amplification(L_x, subject.steps)[counts].square()", "amplification(L_x, subject.steps)[counts]", SMOOTHNESS),
    Mutant("smoothness-L-g", "scopes/_smoothness.py", "L_f, L_x, L_g = norms.max(0).values.tolist()", "L_f, L_x, L_g = [*norms.max(0).values.tolist()[:2], 1.0]", SMOOTHNESS),
    Mutant("smoothness-joint-norm", "scopes/_smoothness.py", "[-1].clamp(min=0).sqrt().item()", "[-1].clamp(min=0).item()", SMOOTHNESS),
    Mutant("signal-over-depth", "scopes/_signal.py", "_ratio(variance[:, -1].mean(), variance[:, 0].mean())", "_ratio(variance[:, 0].mean(), variance[:, -1].mean())", SIGNAL),
    Mutant("signal-over-time", "scopes/_signal.py", "_ratio(variance[-1].mean(), early.mean())", "_ratio(variance[-1].mean(), variance.mean())", SIGNAL),
    Mutant("signal-gradient-over-time", "scopes/_signal.py", "_ratio(gradient[0].mean(), gradient[-1].mean())", "_ratio(gradient[-1].mean(), gradient[0].mean())", SIGNAL),
    Mutant("signal-fan-in", "scopes/_signal.py", "fan_in += weights[partner].shape[1]", "fan_in += 0", WEIGHT_GAIN),
    Mutant("attention-lag", "scopes/_attention.py", "self.lag[:, t] = (weights * lags).sum(1)", "self.lag[:, t] = (weights * lags).mean(1)", ATTENTION),
    Mutant("attention-entropy", "scopes/_attention.py", "entr(weights).sum(1).exp()", "entr(weights).sum(1)", ATTENTION),
    Mutant("attention-relevance-needed", "scopes/_attention.py", "amin(1) * screening.decay", "amin(1)", ATTENTION),
    Mutant("attention-beyond-buffer", "scopes/_attention.py", "_fraction(attention * (lags >= buffer), attention)", "_fraction(attention * (lags > buffer), attention)", ATTENTION),
    Mutant("receptive-field", "scopes/_measures/decay.py", "return float(felt[-1] + 1) if", "return float(felt[-1]) if", ORDINARY + "::test_the_receptive_field_is_said"),
    Mutant("receptive-field-underflow", "scopes/_measures/decay.py", "strongest[felt[-1]] > smallest * strongest.max()", "strongest[felt[-1]] > 0", ORDINARY + "::test_a_memory_that_underflows_has_no_receptive_field"),
    Mutant("receptive-field-detached", "scopes/_horizon.py", "return bool(change > negligible(y.dtype) * y.abs().max())", "return False", ORDINARY + "::test_a_detached_state_has_no_receptive_field"),
    Mutant("first-token", "scopes/_horizon.py", "< by_first * growth ** (1 / 8))", "> by_first * growth ** (1 / 8))", ORDINARY + "::test_a_classifier_that_reads_the_first_token_does_not_explode"),
    Mutant("half-precision", "scopes/_measures/rounding.py", "return min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)", "return torch.finfo(dtype).eps", "tests/scopes/test_recurrence_scope.py::test_a_memory_in_half_precision_that_weighs_little"),
    Mutant("lags-from-last-read", "scopes/_measures/gradients.py", "return JacobianNorms(norms.frobenius[unread:], spectral, norms.ends - unread)", "return norms", ORDINARY + "::test_fewer_or_more_outputs_than_inputs_of_a_convolution"),
    Mutant("ids-positions", "adapters/_ids.py", "rows = columns[ids.positions.clamp(min=0)]", "rows = columns[ids.positions.clamp(min=0) * 0]", IDS + "::test_every_way_to_look_ids_up"),
    Mutant("ids-derived", "adapters/_ids.py", "first.derived or not unchanged", "first.derived", IDS + "::test_every_way_to_look_ids_up"),
    Mutant("decay-rate", "scopes/_measures/decay.py", "return Law(name, math.exp(slope), exponent, quality, advantage)", "return Law(name, math.exp(-slope), exponent, quality, advantage)", HORIZON),
    Mutant("decay-law", "scopes/_measures/decay.py", "if residual_power < residual_exponential:", "if residual_power > residual_exponential:", HORIZON),
    Mutant("decay-quality", "scopes/_measures/decay.py", "quality = 1 - best / total if total > tiny else 1.0", "quality = 1.0", HORIZON),
    Mutant("certificate-rnn", "scopes/_measures/certificates.py", "own.append(phi.lipschitz * spectral_norm(w.weight_hh))", "own.append(phi.lipschitz * spectral_norm(w.weight_hh) / 2)", STABILITY),
    Mutant("certificate-stack", "scopes/_measures/certificates.py", "matrix[layer] += between[layer] * matrix[layer - 1]", "matrix[layer] += matrix[layer - 1]", STABILITY),
    Mutant("certificate-euclidean", "scopes/_measures/certificates.py", "self.weights.norm() / self.weights.min()", "self.weights.max() / self.weights.min()", f"{CLOSED_FORM}::test_a_certified_factor_costs_the_norm_of_the_weights_in_the_euclidean_norm"),
    Mutant("certificate-modrelu", "scopes/_measures/certificates.py", "float(w.bias_modrelu.max()) <= 0", "float(w.bias_modrelu.max()) <= 1", STABILITY),
]

# Of scopes that change most; they come last.
CHANGING_SCOPE_MUTANTS = [
    Mutant("lyapunov-standard-error", "scopes/_measures/growth.py", "error = (variance.mean(0) / effective).sqrt()", "error = variance.mean(0) / effective", LYAPUNOV),
    Mutant("kaplan-yorke", "scopes/_lyapunov.py", "return j + before / abs(exponents[j])", "return j + before / abs(exponents[j - 1])", f"{LYAPUNOV}::test_kaplan_yorke {BOUNDARIES}::test_kaplan_yorke_where_a_sum_is_zero"),
    Mutant("lyapunov-digits", "scopes/_lyapunov.py", "-math.log(torch.finfo(subject.dtype).eps) / largest", "-math.log10(torch.finfo(subject.dtype).eps) / largest", LYAPUNOV),
    Mutant("entropy-per-number", "scopes/_entropy.py", "mean / size", "mean", f"{CLOSED_FORM}::test_entropy_per_number_and_its_bound_by_the_norm"),
    Mutant("entropy-log-norm", "scopes/_entropy.py", "size * norms.log().mean(1)", "norms.log().mean(1)", f"{CLOSED_FORM}::test_entropy_per_number_and_its_bound_by_the_norm"),
    Mutant("truncation-1-over-k", "scopes/_truncation.py", "np.log(errors[usable] / lengths[usable])", "np.log(errors[usable])", f"{CLOSED_FORM}::test_fitted_lambda_of_k_lambda_to_the_k"),
    Mutant("truncation-output-bound", "scopes/_measures/truncation_bounds.py", "prediction_gap(self.system, lipschitz, int(k)) / output_size", "prediction_gap(self.system, 1.0, int(k)) / output_size", f"{CLOSED_FORM}::test_output_bound_has_the_spectral_norm_of_the_readout"),
    Mutant("truncation-output-size", "scopes/_measures/truncation_bounds.py", "prediction_gap(self.system, lipschitz, int(k)) / output_size", "prediction_gap(self.system, lipschitz, int(k))", TRUNCATION),
    Mutant("truncation-gradient-bound", "scopes/_measures/truncation_bounds.py", "gradient_gap(self.system, self.loss, int(k)) / gradient_size", "gradient_gap(self.system, self.loss, int(k)) / gradient_size / 2", TRUNCATION),
    Mutant("truncation-readout-lipschitz", "scopes/_measures/truncation_bounds.py", "matrix_norm(self.readout, ord=self.order)", "matrix_norm(self.readout)", f"{CLOSED_FORM}::test_output_bound_has_the_spectral_norm_of_the_readout"),
    Mutant("truncation-groups-error", "scopes/_measures/chunks.py", "return relative_error(self._part(k, rows, by_outputs), part)", "return self.error(k)", f"{CHUNKS}::test_spread_covers_sequences_of_two_rates"),
    Mutant("truncation-groups-add-up", "scopes/_measures/chunks.py", "if not float((torch.stack(parts).sum(0) - self.whole).norm()) <= zero:", "if False:", f"{CHUNKS}::test_sequences_that_are_mixed_have_no_groups"),
    Mutant("truncation-groups-zero", "scopes/_measures/chunks.py", "if float(part.norm()) <= zero:", "if False:", f"{CHUNKS}::test_groups_leave_out_sequences_without_a_gradient"),
    Mutant("truncation-groups-part", "scopes/_measures/chunks.py", "* by_outputs[:, rows]).sum()", "* by_outputs[:, rows].abs()).sum()", f"{CHUNKS}::test_spread_covers_sequences_of_two_rates"),
    Mutant("truncation-spread-need", "scopes/_truncation.py", "[_at_least_the_need(window, subject) for window in (low, high)]", "[low, high]", f"{CHUNKS}::test_a_need_above_the_chunks_has_no_spread_of_its_own"),
    Mutant("truncation-chunks-state", "scopes/_measures/chunks.py", "state = detach(state)", "state = None", f"{CHUNKS}::test_bptt_error_is_that_of_chunks_with_a_carried_state"),
    Mutant("truncation-chunks-detached", "scopes/_measures/chunks.py", "state = detach(state)", "pass", f"{CHUNKS}::test_bptt_error_is_that_of_chunks_with_a_carried_state"),
    Mutant("window-of-a-part", "scopes/_measures/windows.py", "(window - 1, *map(", "(0, *map(", f"{TRUNCATION_BOUNDARIES}::test_the_window_of_a_part_is_found_from_that_of_the_whole"),
    Mutant("window-bisection", "scopes/_measures/windows.py", "while enough - too_short > 1:", "while enough - too_short > 2:", f"{TRUNCATION_BOUNDARIES}::test_shortest_window_is_found_by_bisection"),
    Mutant("range-holds-figure", "scopes/_measures/windows.py", "max(high, figure)", "high", f"{TRUNCATION_BOUNDARIES}::test_a_range_holds_its_figure"),
    Mutant("landscape-rise", "scopes/_landscape.py", "np.nanmean(edge) / here if here", "np.nanmax(edge) / here if here", f"{CLOSED_FORM}::test_landscape_of_a_parabola"),
    Mutant("landscape-parabola", "scopes/_landscape.py", "parabola = 8 / (len(cost) - 1) ** 2", "parabola = 4 / (len(cost) - 1) ** 2", f"{CLOSED_FORM}::test_landscape_of_a_parabola"),
    Mutant("landscape-share", "scopes/_landscape.py", "share = 1 - steps[:, : len(self.targets)].sum(1)", "share = 1 + 0 * steps[:, : len(self.targets)].sum(1)", f"{LANDSCAPE}::test_plane_through_three_points"),
    Mutant("landscape-embedding", "scopes/_frame/subject.py", "return self.features if self.adapted.ids is None else self.adapted.ids", "return self.features", f"{LANDSCAPE}::test_ends_have_the_costs_of_the_two_models"),
    Mutant("attractors-given-start", "scopes/_attractors.py", "first = flatten(given).to(initial)", "first = flatten(given).to(initial) + 1e-3", f"{ATTRACTORS}::test_a_given_start_is_taken_as_it_is"),
    Mutant("mean-loss-position", "scopes/_measures/gradients.py", "vector[end] = by_output[end]", "vector[: end + 1] = by_output[: end + 1]", f"{HORIZON_OF_LOSSES}::test_mean_of_the_sizes_of_the_losses_gradients"),
    Mutant("separation-ceiling", "scopes/_separation.py", "separation_ceiling(one.depth, one.channels, one.inputs, length, len(templates))", "separation_ceiling(one.depth, one.channels, one.inputs, length)", f"{CLOSED_FORM}::test_ceiling_counts_the_values_that_inputs_take"),
    Mutant("repeat-state", "scopes/_frame/repeat.py", "if _difference(fresh, run_after(fix_random_numbers)) <= limit:", "if _difference(fresh, run_after(reset)) <= limit:", REPEAT),
    Mutant("repeat-seed", "scopes/_frame/repeat.py", "torch.default_generator.manual_seed(SEED)", "torch.default_generator.seed()", REPEAT),
    Mutant("repeat-reset", "scopes/_frame/subject.py", "self.repetition.prepare()", "pass", REPEAT),
    Mutant("repeat-starts", "scopes/_frame/subject.py", "recurrence_is_model=False, starts_itself=False)", "recurrence_is_model=False)", REPEAT),
    Mutant("snapshot-tensor", "scopes/_frame/snapshot.py", "tensor.copy_(value)", "tensor.add_(0)", REPEAT),
    Mutant("snapshot-new-key", "scopes/_frame/snapshot.py", "del things[key]", "pass", REPEAT),
    Mutant("period-of-a-spiral", "scopes/_measures/periods.py", "shortest_step > 10 * SAME * size and ", "", ATTRACTORS),
    Mutant("period-of-rounding", "scopes/_measures/periods.py", "return period if shortest_step > 100 * noise * size else 1", "return 1", ATTRACTORS),
    Mutant("exponent-of-zero", "scopes/_measures/growth.py", "total += torch.log(diagonal)", "total += torch.log(diagonal.clamp(min=1e-300))", EXPLODING),
    Mutant("size-of-a-large-state", "scopes/_measures/growth.py", "vector.double().norm(dim=1).cpu()", "vector.norm(dim=1).double().cpu()", EXPLODING),
    Mutant("truncation-trained-window", "scopes/_truncation.py", '("certified_window",) if bounds', '("certified_window", "trained_window") if bounds', TRUNCATION),
    Mutant("entropy-identical-sequences", "scopes/_entropy.py", "standard_error(different.unsqueeze(2))", "standard_error(change.unsqueeze(2))", f"{ENTROPY}::test_identical_sequences_do_not_shrink_the_standard_error"),
    Mutant("entropy-readable", "scopes/_entropy.py", "if abs(change) > READABLE:", "if abs(change) < READABLE:", ENTROPY),
    Mutant("entropy-margin", "scopes/_entropy.py", "max(2 * error, 1e-3 * size)", "1e-3 * size", f"{ENTROPY}::test_a_change_within_two_standard_errors_is_none"),
    Mutant("entropy-singular", "scopes/_entropy.py", "(~change.isfinite()).double().mean()", "change.isfinite().double().mean()", ENTROPY),
    Mutant("landscape-range", "scopes/_landscape.py", "torch.linspace(low, high, points", "torch.linspace(-high, high, points", f"{LANDSCAPE}::test_ranges_and_titles_of_the_axes"),
    Mutant("landscape-zoom-middle", "scopes/_landscape.py", "middle = float(torch.zeros(()).clamp(float(x[0]), float(x[-1])))", "middle = 0.0", f"{LANDSCAPE}::test_a_line_that_begins_beyond_the_model_is_looked_at_inside_its_range"),
    Mutant("landscape-zoom", "scopes/_landscape.py", "ZOOM = 16  #", "ZOOM = 1  #", f"{LANDSCAPE}::test_resolution_is_that_of_the_finest_line"),
    Mutant("landscape-cost-to", "scopes/_landscape.py", "torch.eye(plane.dimensions, dtype=torch.float64)[:1]", "torch.zeros(1, plane.dimensions, dtype=torch.float64)", f"{LANDSCAPE}::test_ends_have_the_costs_of_the_two_models"),
    Mutant("landscape-held-out", "scopes/_landscape.py", 'figures["held_out"] = _own_cost(subject, inputs, targets)', 'figures["held_out"] = here', f"{LANDSCAPE}::test_held_out_sequences"),
    Mutant("landscape-filter-rows", "scopes/_landscape.py", "lengths = parameter.flatten(1).norm(dim=1, keepdim=True)", "lengths = parameter.norm()", f"{LANDSCAPE}::test_filter_normalized_directions"),
    Mutant("landscape-corners", "scopes/_landscape.py", "found[corners] = cost(steps[corners], False)", "pass", LANDSCAPE),
    Mutant("attractors-scale", "scopes/_attractors.py", '(s if "weight_hh" in name else 1.0)', "s", f"{ATTRACTORS}::test_scale_moves_the_recurrent_weights_alone"),
    Mutant("attractors-constants", "scopes/_attractors.py", "x = constant.repeat_interleave(len(own), 0)", "x = constant.repeat(len(own), 1)", f"{ATTRACTORS}::test_path_of_state_dicts_outputs_and_several_constants"),
    Mutant("attractors-outputs", "scopes/_measures/parameter_batches.py", "return [output[..., list(outputs)], *leaves(state)]", "return [output[..., : len(outputs)], *leaves(state)]", ATTRACTORS),
    Mutant("attractors-basins", "scopes/_attractors.py", "self.numbers.count(number) / len(self.numbers)", "1 / len(self.numbers)", f"{ATTRACTORS}::test_basins_add_up"),
    Mutant("attractors-wandering", "scopes/_attractors.py", "return len(self._attractors) + bool(wandering.any())", "return len(self._attractors)", f"{ATTRACTORS}::test_bounded_orbits_without_a_period_are_one_attractor"),
    Mutant("attractors-diverged", "scopes/_attractors.py", "wandering = (self.period == 0) & ~self.diverged", "wandering = self.period == 0", f"{ATTRACTORS}::test_diverging_orbits_are_no_attractor"),
    Mutant("mean-loss-gradient", "scopes/_horizon.py", "means[name] = np.nanmean(reached, axis=1)", "means[name] = np.nanmedian(reached, axis=1)", f"{HORIZON_OF_LOSSES}::test_mean_of_the_sizes_of_the_losses_gradients"),
    Mutant("horizon-early-ends", "scopes/_horizon.py", "(single < norms.ends) | (norms.ends == norms.ends.max())", "single < np.inf", f"{HORIZON}::test_a_sample_that_reaches_the_first_step_from_an_early_end_is_left_out"),
    Mutant("horizon-gap-depth", "scopes/_measures/decay.py", "last] < GAP * level)", "last] < level)", f"{HORIZON_BOUNDARIES}::test_a_gap_is_deep_and_ends"),
    Mutant("horizon-gap-last", "scopes/_measures/decay.py", "int(first) + int(gap[-1]) + 1", "int(first) + int(gap[0]) + 1", f"{HORIZON_BOUNDARIES}::test_a_gap_is_deep_and_ends"),
    Mutant("horizon-first-felt", "scopes/_measures/decay.py", "begin = 1 + int(reached[0])", "begin = 1 + int(np.argmax(profile[1:]))", f"{HORIZON_BOUNDARIES}::test_first_below_begins_where_the_past_is_first_felt"),
    Mutant("horizon-at-need", "scopes/_horizon.py", "profile[min(int(subject.needs), len(profile) - 1)]", "profile[-1]", f"{HORIZON}::test_a_gap_in_the_memory_is_told"),
    Mutant("headline-at-need", "report/_headline.py", ' and not _figure(examination, "horizon", "at_need") < _fraction(examination)', "", f"{HORIZON}::test_a_gap_in_the_memory_is_told"),
    Mutant("chunks-from-the-start", "scopes/_measures/chunks.py", "[*([first] if first else []), *[k] * (len(x) // k)]", "[*[k] * (len(x) // k), *([first] if first else [])]", f"{CHUNKS}::test_chunks_for_a_loss_at_the_last_step_alone"),
    Mutant("truncation-coarse", "scopes/_truncation.py", "COARSE = 10  #", "COARSE = 1  #", f"{CHUNKS}::test_chunks_for_a_loss_at_the_last_step_alone"),
    Mutant("truncation-variation", "scopes/_truncation.py", "centered = [end - end.mean(0) for", "centered = [end for", f"{TRUNCATION}::test_an_output_that_is_mostly_bias_gives_no_window"),
    Mutant("layer-feeds-back", "adapters/_forward_only.py", "return calls.reads_as(again) and not calls.reads_as(other)", "return False", "tests/adapters/test_forward.py::test_a_layer_whose_outputs_are_fed_back_is_not_the_recurrence"),
    Mutant("layer-steps", "scopes/_horizon.py", " or len(subject.recurrence_inputs) != subject.steps", "", "tests/adapters/test_forward.py::test_steps_of_a_layer_that_are_not_those_of_the_model_are_told"),
    Mutant("step-and-forward", "adapters/_adapt.py", "return _agree(whole, unrolled)", "return True", "tests/adapters/test_step.py"),
    Mutant("horizon-reads-later", "scopes/_measures/gradients.py", "later = torch.arange(len(rows))[:, None] > ends", "later = torch.arange(len(rows))[:, None] >= ends", f"{HORIZON}::test_a_convolution_that_reads_later_inputs_is_said_to"),
    Mutant("attractors-unsettled", "scopes/_attractors.py", "    if aperiodic:\n", "    if aperiodic == 2:\n", ATTRACTORS),
    Mutant("entropy-unsure", "scopes/_entropy.py", "<= margin > max(UNSURE, 1e-3 * size)", "<= margin > math.inf", ENTROPY),
    Mutant("truncation-promise", "scopes/_truncation.py", "if window <= steps / 2:", "if window <= steps:", "tests/scopes/test_truncation_boundaries.py"),
    Mutant("recurrence-weak-memory", "scopes/_recurrence.py", "else 32 * rounding", "else 1024 * rounding", "tests/scopes/test_recurrence_scope.py::test_kind_of_model"),
    Mutant("verdict-long-chunks", "scopes/_frame/verdict.py", "if reach < window <= subject.steps / 2:", "if reach < window < subject.steps:", "tests/scopes/test_verdict.py::test_truncation_window_against_the_length_of_the_sequences"),
    Mutant("horizon-present", "scopes/_horizon.py", "profile[0] / strongest if strongest > 0", "profile[0] if strongest > 0", HORIZON),
    Mutant("stability-isometric", "scopes/_stability.py", "all(abs(stretch - 1) < 1e-3 for stretch in jacobians)", "abs(jacobians[0] - 1) < 1e-3", f"{BOUNDARIES}::test_stability_regimes"),
    Mutant("stability-pairs-regime", "scopes/_stability.py", 'max(figures["largest_jacobian"], figures.get("largest_ratio", 0.0))', 'figures["largest_jacobian"]', f"{BOUNDARIES}::test_stability_regimes"),
    Mutant("stability-mean-stretch", "scopes/_stability.py", "read.square().sum((1, 2)).mean() / read.shape[2]", "read.square().sum((1, 2)).mean()", f"{STABILITY}::test_orthogonal_recurrence_is_isometric"),
    Mutant("stability-rounded-pairs", "scopes/_stability.py", "differ & after.isfinite().all(1)", "after.isfinite().all(1)", f"{STABILITY}::test_pairs_that_differ_by_rounding_alone_are_left_out"),
    Mutant("truncation-no-gradient", "scopes/_truncation.py", "if not 0 < float(gradient.norm()) < math.inf:", "if False:", f"{CHUNKS}::test_without_a_gradient_no_chunk_is_called_safe"),
    Mutant("certificate-projections", "scopes/_measures/certificates.py", "or recurrence.proj_size or", "or", f"{CERTIFICATES}::test_an_lstm_with_projections_is_measured_and_not_certified"),
    Mutant("lyapunov-unsure", "scopes/_lyapunov.py", "UNSURE = 0.05  #", "UNSURE = 5.0  #", f"{LYAPUNOV}::test_an_exponent_that_is_hardly_known_is_not_called_zero"),
    Mutant("certificate-in-the-frame", "scopes/_frame/examine.py", "bound = math.log(factor) + math.log", "bound = 1e9 + math.log(factor) + math.log", CERTIFICATES),
]

# fmt: on
MUTANTS = [
    *EQUATION_MUTANTS,
    *LAYER_MUTANTS,
    *TRAINING_MUTANTS,
    *REPORT_MUTANTS,
    *THEORY_MUTANTS,
    *SYSTEM_MUTANTS,
    *AGENT_MUTANTS,
    *STUDY_MUTANTS,
    *SCOPE_MUTANTS,
    *CHANGING_SCOPE_MUTANTS,
]
