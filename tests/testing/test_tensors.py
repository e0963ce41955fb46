"""The tensors that implementations are tried with."""

from __future__ import annotations

import numpy as np
import pytest

from normgrad import testing


def test_layouts_have_the_values_they_are_given():
    values = np.arange(24.0).reshape(2, 3, 4)
    for layout in testing.LAYOUTS:
        if layout == "constant":
            assert (testing.lay_out(values, layout) == values[0, 0, 0]).all()
        elif layout != "expanded":
            assert (testing.lay_out(values, layout) == values).all()
    with pytest.raises(ValueError, match="layout: 'diagonal'; allowed: contiguous, channels_last"):
        testing.lay_out(values, "diagonal")
