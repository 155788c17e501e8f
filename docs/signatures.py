"""An extension of griffe: the reference shows signatures as they are for a caller, and not as they are written.

What is written ``horizon(subject, *, fraction)`` is called ``horizon(model, inputs, *, fraction, targets, loss, ...)``:
`@scope` puts the arguments of `subject_of` in place of the subject. A field that is ``added_later(1.0)`` to a
configuration has the default 1.0.
"""

from __future__ import annotations

from typing import Any

import griffe


class Signatures(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if str(attr.value).startswith("added_later(") and isinstance(attr.value, griffe.ExprCall):
            attr.value = attr.value.arguments[0]

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        model, inputs, *common = pkg["scopes._frame.subject.subject_of"].parameters
        for module in pkg["scopes"].modules.values():
            for function in module.functions.values():
                if any(str(decorator.value).startswith("scope(") for decorator in function.decorators):
                    _, *own = function.parameters
                    known = {parameter.name for parameter in own}
                    others = [parameter for parameter in common if parameter.name not in known]
                    function.parameters = griffe.Parameters(model, inputs, *own, *others)
