"""Small changes to the scopes, and to the models that are adapted for them; see `table`."""

from __future__ import annotations

from mutants.mutant import Mutant

ORDINARY = "tests/scopes/test_ordinary_models.py"
IDS = "tests/adapters/test_ids.py"
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
PERIODS = "tests/scopes/test_periods.py"
OPTIONS = "tests/scopes/test_options.py"

# fmt: off
# A table: one mutant a line.
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
    Mutant("receptive-field", "scopes/_measures/decay.py", "return float(last + 1) if", "return float(last) if", ORDINARY + "::test_the_receptive_field_is_said"),
    Mutant("receptive-field-underflow", "scopes/_measures/decay.py", "strongest[last] > smallest * strongest.max()", "strongest[last] > 0", ORDINARY + "::test_a_memory_that_underflows_has_no_receptive_field"),
    Mutant("receptive-field-detached", "scopes/_measures/receptive_field.py", "return bool(change > negligible(y.dtype) * y[at].abs().max())", "return False", ORDINARY + "::test_a_detached_state_has_no_receptive_field"),
    Mutant("receptive-field-early-end", "scopes/_measures/decay.py", "if not seen_to_end.any():", "if False:", "tests/scopes/test_padded_sequences.py"),
    Mutant("silent-outputs", "scopes/_measures/gradients.py", "return replace(norms.without_silent(), reads_later", "return replace(norms, reads_later", "tests/scopes/test_padded_sequences.py"),
    Mutant("memory-elsewhere", "scopes/_recurrence.py", 'if kind in ("memoryless", "detached", "without gradient"):', "if False:", "tests/scopes/test_recurrence_scope.py::test_memory_that_the_middle_of_the_sequence_does_not_show"),
    Mutant("ids-of-a-step", "adapters/_step.py", " if self._known is None else self._known.nearest(x)", "", "tests/adapters/test_ids_seen_otherwise.py"),
    Mutant("ids-of-a-window", "adapters/_forward_only.py", "if vocabulary.sees_ids:", "if False:", "tests/adapters/test_ids_seen_otherwise.py"),
    Mutant("neutral-fixed-points", "scopes/_measures/fixed_points.py", "< 1 - 16 * torch.finfo(self.points.dtype).eps", "< 1", "tests/scopes/test_neutral_maps.py"),
    Mutant("first-token", "scopes/_measures/receptive_field.py", "< by_first * growth ** (1 / 8))", "> by_first * growth ** (1 / 8))", ORDINARY + "::test_a_classifier_that_reads_the_first_token_does_not_explode"),
    Mutant("half-precision", "scopes/_measures/rounding.py", "return min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)", "return torch.finfo(dtype).eps", "tests/scopes/test_recurrence_scope.py::test_a_memory_in_half_precision_that_weighs_little"),
    Mutant("lags-from-last-read", "scopes/_measures/gradients.py", "return JacobianNorms(norms.frobenius[unread:], spectral, norms.ends - unread)", "return norms", ORDINARY + "::test_fewer_or_more_outputs_than_inputs_of_a_convolution"),
    Mutant("kwargs-of-a-window", "adapters/_call.py", "self.steps - steps if from_end else 0", "0", "tests/adapters/test_forward.py::test_a_window_of_the_last_steps_has_what_was_given_for_these"),
    Mutant("outputs-in-a-list", "adapters/_call.py", "and _is_one_a_step(result, *sizes)", "and False", "tests/adapters/test_results.py"),
    Mutant("layout-of-a-sequence-alone", "adapters/_adapt.py", "adapted.features[:, -1:]), adapted.run(adapted.features)[:, -1:])", "adapted.features[:, -1:]), adapted.run(adapted.features[:, -1:]))", "tests/adapters/test_results.py"),
    Mutant("time-axis-seen-twice", "adapters/_layout.py", "known and tuple(output.shape).count(steps) == 1", "known", "tests/adapters/test_forward.py"),
    Mutant("ids-positions", "adapters/_ids.py", "rows = columns[ids.positions.clamp(min=0)]", "rows = columns[ids.positions.clamp(min=0) * 0]", IDS + "::test_every_way_to_look_ids_up"),
    Mutant("ids-derived", "adapters/_ids.py", "first.derived or not unchanged", "first.derived", IDS + "::test_every_way_to_look_ids_up"),
    Mutant("decay-rate", "scopes/_measures/decay.py", "return Law(name, math.exp(slope), exponent, quality, advantage)", "return Law(name, math.exp(-slope), exponent, quality, advantage)", HORIZON),
    Mutant("decay-law", "scopes/_measures/decay.py", "if residual_power < residual_exponential:", "if residual_power > residual_exponential:", HORIZON),
    Mutant("decay-plateau", "scopes/_measures/decay.py", "eps ** 2 * largest, of_sums)", "eps ** 2 * largest, 0.0)", f"{HORIZON}::test_rounding_of_a_parallel_scan_is_no_power_law"),
    Mutant("parameters-registered-meanwhile", "scopes/_frame/untouched.py", "if list(module._parameters.keys()) != list(own):", "if False:", "tests/scopes/test_untouched.py"),
    Mutant("horizon-gaps", "scopes/_measures/decay.py", "return sum(bool((part", "return any(bool((part", f"{HORIZON}::test_inputs_read_at_every_other_step_are_not_one_gap"),
    Mutant("entropy-times", "scopes/_entropy.py", "rows=max(1, points // TIMES)", "rows=8", "tests/scopes/test_entropy_scope.py"),
    Mutant("decay-quality", "scopes/_measures/decay.py", "quality = 1 - best / total if total > tiny else 1.0", "quality = 1.0", HORIZON),
    Mutant("certificate-rnn", "scopes/_measures/certificates.py", "own.append(phi.lipschitz * spectral_norm(w.weight_hh))", "own.append(phi.lipschitz * spectral_norm(w.weight_hh) / 2)", STABILITY),
    Mutant("certificate-stack", "scopes/_measures/certificates.py", "matrix[layer] += between[layer] * matrix[layer - 1]", "matrix[layer] += matrix[layer - 1]", STABILITY),
    Mutant("certificate-euclidean", "scopes/_measures/certificates.py", "self.weights.norm() / self.weights.min()", "self.weights.max() / self.weights.min()", f"{CLOSED_FORM}::test_a_certified_factor_costs_the_norm_of_the_weights_in_the_euclidean_norm"),
    Mutant("certificate-modrelu", "scopes/_measures/certificates.py", "float(w.bias_modrelu.max()) <= 0", "float(w.bias_modrelu.max()) <= 1", STABILITY),
]

# Of scopes that change most; they come last.
CHANGING_SCOPE_MUTANTS = [
    Mutant("lyapunov-standard-error", "scopes/_measures/growth.py", "error = (variance.mean(0) / effective).sqrt()", "error = variance.mean(0) / effective", LYAPUNOV),
    Mutant("lyapunov-drift", "scopes/_measures/growth.py", "return torch.maximum(error, 1.1 * drift)", "return error", f"{LYAPUNOV}::test_the_error_covers_a_mean_that_has_not_settled"),
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
    Mutant("attractors-given-start", "scopes/_measures/orbit_starts.py", "first = flatten(given).to(initial)", "first = flatten(given).to(initial) + 1e-3", f"{ATTRACTORS}::test_a_given_start_is_taken_as_it_is"),
    Mutant("mean-loss-position", "scopes/_measures/gradients.py", "vector[end] = by_output[end]", "vector[: end + 1] = by_output[: end + 1]", f"{HORIZON_OF_LOSSES}::test_mean_of_the_sizes_of_the_losses_gradients"),
    Mutant("separation-zero", "scopes/_separation.py", "if proved is not None and proved.rank == 0:", "if False:", "tests/scopes/test_separation.py::test_a_rank_of_zero_is_not_certified"),
    Mutant("truncation-need", "scopes/_truncation.py", "min(subject.needs + 1, figures", "min(subject.needs, figures", f"{TRUNCATION_BOUNDARIES}::test_truncation_warning_at_equality_with_the_need"),
    Mutant("landscape-negative-cost", "scopes/_landscape.py", '> 0.01 * abs(figures["cost"])', '> 0.01 * figures["cost"]', f"{OPTIONS}::test_the_lowest_cost_may_be_negative"),
    Mutant("period-longest", "scopes/_measures/periods.py", "min(LONGEST_PERIOD, recorded // 2)", "LONGEST_PERIOD", f"{OPTIONS}::test_few_recorded_steps_show_short_periods_only"),
    Mutant("mixed-sequences", "scopes/_frame/scope.py", "if subject.kind not in MIXING:", "if subject.kind:", "tests/scopes/test_recurrence_scope.py::test_mixed_sequences_are_not_looked_at_side_by_side"),
    Mutant("separation-ceiling", "scopes/_separation.py", "separation_ceiling(one.depth, one.channels, one.inputs, length, len(templates))", "separation_ceiling(one.depth, one.channels, one.inputs, length)", f"{CLOSED_FORM}::test_ceiling_counts_the_values_that_inputs_take"),
    Mutant("repeat-state", "scopes/_frame/repeat.py", "if _difference(fresh, run_after(fix_random_numbers)) <= limit:", "if _difference(fresh, run_after(reset)) <= limit:", REPEAT),
    Mutant("repeat-seed", "scopes/_frame/repeat.py", "torch.default_generator.manual_seed(SEED)", "torch.default_generator.seed()", REPEAT),
    Mutant("repeat-reset", "scopes/_frame/subject.py", "self.repetition.prepare()", "pass", REPEAT),
    Mutant("repeat-starts", "scopes/_frame/subject.py", "recurrence_is_model=False, starts_itself=False)", "recurrence_is_model=False)", REPEAT),
    Mutant("snapshot-tensor", "scopes/_frame/snapshot.py", "tensor.copy_(value)", "tensor.add_(0)", REPEAT),
    Mutant("snapshot-new-key", "scopes/_frame/snapshot.py", "del things[key]", "pass", REPEAT),
    Mutant("period-of-a-spiral", "scopes/_measures/periods.py", "shortest_step > 10 * SAME * size and ", "", PERIODS),
    Mutant("period-of-rounding", "scopes/_measures/periods.py", "return period if shortest_step > 100 * noise * size else 1", "return 1", PERIODS),
    Mutant("exponent-of-zero", "scopes/_measures/growth.py", "total += torch.log(diagonal)", "total += torch.log(diagonal.clamp(min=1e-300))", EXPLODING),
    Mutant("size-of-a-large-state", "scopes/_measures/growth.py", "vector.double().norm(dim=1).cpu()", "vector.norm(dim=1).double().cpu()", EXPLODING),
    Mutant("truncation-trained-window", "scopes/_truncation.py", '("certified_window",) if bounds', '("certified_window", "trained_window") if bounds', TRUNCATION),
    Mutant("entropy-identical-sequences", "scopes/_entropy.py", "standard_error(different.unsqueeze(2))", "standard_error(change.unsqueeze(2))", f"{ENTROPY}::test_identical_sequences_do_not_shrink_the_standard_error"),
    Mutant("entropy-readable", "scopes/_entropy.py", "if abs(change) > READABLE:", "if abs(change) < READABLE:", ENTROPY),
    Mutant("entropy-margin", "scopes/_entropy.py", "max(2 * error, 1e-3 * size)", "1e-3 * size", f"{ENTROPY}::test_a_change_within_two_standard_errors_is_none"),
    Mutant("entropy-singular", "scopes/_entropy.py", "(~change.isfinite()).double().mean()", "change.isfinite().double().mean()", ENTROPY),
    Mutant("landscape-range", "scopes/_landscape.py", "torch.linspace(low, high, points", "torch.linspace(-high, high, points", f"{LANDSCAPE}::test_ranges_and_titles_of_the_axes"),
    Mutant("landscape-zoom-middle", "scopes/_landscape.py", "middle = min(max(0.0, low), high)", "middle = 0.0", f"{LANDSCAPE}::test_a_line_that_begins_beyond_the_model_is_looked_at_inside_its_range"),
    Mutant("landscape-zoom", "scopes/_landscape.py", "ZOOM = 16  #", "ZOOM = 1  #", f"{LANDSCAPE}::test_resolution_is_that_of_the_finest_line"),
    Mutant("landscape-cost-to", "scopes/_landscape.py", "torch.eye(plane.dimensions, dtype=torch.float64)[:1]", "torch.zeros(1, plane.dimensions, dtype=torch.float64)", f"{LANDSCAPE}::test_ends_have_the_costs_of_the_two_models"),
    Mutant("landscape-held-out", "scopes/_landscape.py", 'figures["held_out"] = _own_cost(subject, inputs, targets)', 'figures["held_out"] = here', f"{LANDSCAPE}::test_held_out_sequences"),
    Mutant("landscape-filter-rows", "scopes/_landscape.py", "lengths = parameter.flatten(1).norm(dim=1, keepdim=True)", "lengths = parameter.norm()", f"{LANDSCAPE}::test_filter_normalized_directions"),
    Mutant("landscape-corners", "scopes/_landscape.py", "found[corners] = cost(steps[corners], False)", "pass", LANDSCAPE),
    Mutant("attractors-scale", "scopes/_measures/orbit_starts.py", '(s if "weight_hh" in name else 1.0)', "s", f"{ATTRACTORS}::test_scale_moves_the_recurrent_weights_alone"),
    Mutant("attractors-constants", "scopes/_attractors.py", "x = constant.repeat_interleave(len(own), 0)", "x = constant.repeat(len(own), 1)", f"{ATTRACTORS}::test_path_of_state_dicts_outputs_and_several_constants"),
    Mutant("attractors-outputs", "scopes/_measures/parameter_batches.py", "return [output[..., list(outputs)], *leaves(state)]", "return [output[..., : len(outputs)], *leaves(state)]", ATTRACTORS),
    Mutant("attractors-basins", "scopes/_attractors.py", "self.numbers.count(number) / len(self.numbers)", "1 / len(self.numbers)", f"{ATTRACTORS}::test_basins_add_up"),
    Mutant("attractors-wandering", "scopes/_attractors.py", "return len(self._attractors) + bool(wandering.any())", "return len(self._attractors)", f"{ATTRACTORS}::test_bounded_orbits_without_a_period_are_one_attractor"),
    Mutant("attractors-diverged", "scopes/_attractors.py", "wandering = (self.period == 0) & ~self.diverged", "wandering = self.period == 0", f"{ATTRACTORS}::test_diverging_orbits_are_no_attractor"),
    Mutant("mean-loss-gradient", "scopes/_horizon.py", "means[name] = np.nanmean(reached, axis=1)", "means[name] = np.nanmedian(reached, axis=1)", f"{HORIZON_OF_LOSSES}::test_mean_of_the_sizes_of_the_losses_gradients"),
    Mutant("horizon-early-ends", "scopes/_measures/horizon_samples.py", "(single < norms.ends) | ((norms.ends == longest) & known)", "single < np.inf", f"{HORIZON}::test_a_sample_that_reaches_the_first_step_from_an_early_end_is_left_out"),
    Mutant("horizon-gap-depth", "scopes/_measures/decay.py", "last] < GAP * level)", "last] < level)", f"{HORIZON_BOUNDARIES}::test_a_gap_is_deep_and_ends"),
    Mutant("horizon-gap-last", "scopes/_measures/decay.py", "int(first) + int(gap[-1]) + 1", "int(first) + int(gap[0]) + 1", f"{HORIZON_BOUNDARIES}::test_a_gap_is_deep_and_ends"),
    Mutant("horizon-first-felt", "scopes/_measures/decay.py", "begin = 1 + int(reached[0])", "begin = 1 + int(np.argmax(profile[1:]))", f"{HORIZON_BOUNDARIES}::test_first_below_begins_where_the_past_is_first_felt"),
    Mutant("horizon-at-need", "scopes/_horizon.py", "profile[min(int(subject.needs), len(profile) - 1)]", "profile[-1]", f"{HORIZON}::test_a_gap_in_the_memory_is_told"),
    Mutant("headline-at-need", "report/_headline.py", ' and not _figure(examination, "horizon", "at_need") < _fraction(examination)', "", f"{HORIZON}::test_a_gap_in_the_memory_is_told"),
    Mutant("chunks-from-the-start", "scopes/_measures/chunks.py", "[*([first] if first else []), *[k] * (len(x) // k)]", "[*[k] * (len(x) // k), *([first] if first else [])]", f"{CHUNKS}::test_chunks_for_a_loss_at_the_last_step_alone"),
    Mutant("truncation-coarse", "scopes/_truncation.py", "COARSE = 10  #", "COARSE = 1  #", f"{CHUNKS}::test_chunks_for_a_loss_at_the_last_step_alone"),
    Mutant("truncation-variation", "scopes/_measures/outputs_of_windows.py", "centered = [end - end.mean(0) for", "centered = [end for", f"{TRUNCATION}::test_an_output_that_is_mostly_bias_gives_no_window"),
    Mutant("layer-feeds-back", "adapters/_forward_only.py", "return calls.reads_as(again) and not calls.reads_as(other)", "return False", "tests/adapters/test_forward.py::test_a_layer_whose_outputs_are_fed_back_is_not_the_recurrence"),
    Mutant("layer-steps", "scopes/_horizon.py", " or len(subject.recurrence_inputs) != subject.steps", "", "tests/adapters/test_forward.py::test_steps_of_a_layer_that_are_not_those_of_the_model_are_told"),
    Mutant("step-and-forward", "adapters/_adapt.py", "return _agree(whole, unrolled)", "return True", "tests/adapters/test_step_and_forward.py"),
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
    Mutant("certificate-rounding", "scopes/_measures/certificates.py", "self.lam < 1 - NORM_ROUNDING", "self.lam < 1", f"{CERTIFICATES}::test_an_orthogonal_matrix_whose_norm_rounds_below_one_is_not_stable"),
    Mutant("horizon-mean", "scopes/_measures/decay.py", "return median if np.any(median[1:] != 0) else", "return median if True else", f"{ORDINARY}::test_gradients_that_few_sequences_have_are_gradients"),
    Mutant("changes-rounding", "scopes/_measures/gradients.py", "smaller > typical / 3", "smaller > 3 * typical", f"{ORDINARY}::test_rounding_of_a_quantized_model_is_no_memory"),
    Mutant("changes-of-nothing", "scopes/_measures/gradients.py", "change.where(is_other[step], 0)[rows]", "change[rows]", f"{ORDINARY}::test_a_quantized_model_reads_symbols_that_sequences_share"),
    Mutant("recurrence-first-output", "scopes/_recurrence.py", "return first if first.after > weakest else middle", "return middle", "tests/scopes/test_recurrence_scope.py::test_sequences_that_were_turned_around_read_the_future"),
    Mutant("recurrence-first-rounding", "scopes/_recurrence.py", "_relative(torch.stack([_gradient_sizes(subject, 0), sizes]))[0]", "_gradient_of(subject, 0)", "tests/scopes/test_recurrence_scope.py::test_rounding_of_a_fourier_transform_is_no_future"),
    Mutant("horizon-unread", "scopes/_measures/receptive_field.py", "from_end < torch.from_numpy(unread)", "from_end < 0 * torch.from_numpy(unread)", f"{ORDINARY}::test_gradients_that_few_sequences_have_are_gradients"),
    Mutant("step-compared", "adapters/_adapt.py", "Recurrence.forward(adapted.recurrence, few)[0]", "adapted.recurrence(few)[0]", "tests/adapters/test_step_and_forward.py::test_a_recurrence_whose_forward_does_more_than_its_step_is_not_its_step"),
    Mutant("lyapunov-ended", "scopes/_lyapunov.py", "alive = ~ended.all(1)", "alive = ended.all(1) | True", f"{LYAPUNOV}::test_a_sequence_whose_units_are_all_off_does_not_hide_the_others"),
    Mutant("horizon-explosion-zeros", "scopes/_measures/decay.py", "np.nonzero((profile > 0) & (profile <= level))", "np.nonzero(profile <= level)", f"{HORIZON_BOUNDARIES}::test_explosion_is_growth_that_does_not_come_back"),
]
# fmt: on
