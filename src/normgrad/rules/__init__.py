"""The contracts of the vendors' APIs (dialects) as tables, and the code that checks calls by them.

A dialect lists each operator's parameters: when each is needed, which dtypes, formats, ranks and
shapes it may have, and how products differ. The tables are data: calls are checked against them,
and they can be printed for people to read. The dialect decides which status a broken rule returns.
"""

from __future__ import annotations

from .calls import Aspect as Aspect
from .calls import Break as Break
from .calls import Call as Call
from .calls import ContractError as ContractError
from .calls import Product as Product
from .tables import Always as Always
from .tables import Contract as Contract
from .tables import IfAsked as IfAsked
from .tables import MayBeNull as MayBeNull
from .tables import Parameter as Parameter
from .tables import Scalar as Scalar
from .tables import When as When
from .tables import check as check
from .tensors import Contiguous as Contiguous
from .tensors import DtypeOf as DtypeOf
from .tensors import DtypeRule as DtypeRule
from .tensors import Elements as Elements
from .tensors import FormatOf as FormatOf
from .tensors import Formats as Formats
from .tensors import Length as Length
from .tensors import OfProduct as OfProduct
from .tensors import OneOf as OneOf
from .tensors import PositiveStrides as PositiveStrides
from .tensors import Rank as Rank
from .tensors import Rule as Rule
from .tensors import ShapeOf as ShapeOf
from .tensors import WithChannels as WithChannels
