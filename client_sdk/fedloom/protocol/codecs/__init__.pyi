from .base import ArrayInfo as ArrayInfo
from .base import Codec as Codec
from .base import Decoder as Decoder
from .base import Encoded as Encoded
from .base import Inspector as Inspector
from .draws import stream as stream
from .floats import Bf16 as Bf16  # [codec] bf16
from .floats import Fp16 as Fp16  # [codec] fp16
from .lossless import Lossless as Lossless  # [codec] lossless
from .low_rank import LowRank as LowRank  # [codec] low_rank
from .quantise import Int4 as Int4  # [codec] int4
from .quantise import Int8 as Int8  # [codec] int8
from .reading import Sequential as Sequential
from .reading import decode as decode
from .reading import decoded as decoded
from .reading import held as held
from .registry import CODECS as CODECS
from .registry import codec as codec
from .sparse import RandomK as RandomK  # [codec] random_k
from .sparse import TopK as TopK  # [codec] top_k
