"""What stores and loaders are varied in, and which of it cannot exist together."""

from tests.contracts.generated.pairwise import Space, needs

SIGNED = ("i1", "i2", "i4", "i8")
UNSIGNED = ("u1", "u2", "u4", "u8")
FLOATS = ("f2", "f4", "f8")
COMPLEX = ("c8", "c16")
TIMES = ("M8[ns]", "m8[10s]")
INTEGERS = (*SIGNED, *UNSIGNED)

FACTORS = {
    "format": (2, 3),
    "dtype": ("bool", *INTEGERS, *FLOATS, *COMPLEX, *TIMES),
    "byte_order": ("little", "big"),
    # F in format 2; the others are transpose codecs of format 3, of which there can be two.
    "order": ("C", "F", "transposed", "rolled", "rolled and swapped"),
    "compressor": (
        "none",
        "zstd",
        "zstd checksum",
        "blosc lz4 noshuffle",
        "blosc lz4 shuffle",
        "blosc lz4 bitshuffle",
        "blosc zstd noshuffle",
        "blosc zstd shuffle",
        "blosc zstd bitshuffle",
        "gzip",
        "zlib",
        "lz4",
        "bz2",
        "lzma",
    ),
    "filters": (
        "none",
        "delta",
        "shuffle",
        "delta shuffle",
        "fixedscaleoffset",
        "astype",
        "packbits",
        "crc32c",
        "fletcher32",
    ),
    # Format 3 can also have the keys of format 2.
    "keys": ("/", ".", "v2 /", "v2 ."),
    # Stored chunks in a shard: all, two along each axis, a number that leaves a part over, or two
    # that are shards themselves.
    "shards": ("none", "whole", "double", "uneven", "nested"),
    "shard_index": (
        "no shards",
        "end",
        "start",
        "end unchecked",
        "start unchecked",
        "end big-endian",
    ),
    # A codec over the whole of a shard, so that it has no parts to read.
    "around_shards": ("nothing", "gzip", "crc32c", "transposed"),
    "grid": ("divides", "ragged", "larger", "single", "one sample", "rectilinear"),
    "ndim": (1, 2, 3, 4),
    "sample_axis": ("first", "middle", "last", "negative"),
    "fill": (
        "zero",
        "-9",
        "largest",
        "no value",
        "infinity",
        "-0.0",
        "payload",
        "null",
    ),
    "missing": ("none", "some", "first", "all but one", "all"),
    "names": ("plain", "spaces", "NFC", "NFD", "nested", "percent", "hash", "root"),
    "store": ("memory", "counting", "path", "folder", "zip", "obstore"),
    "view": ("plain", "window", "shift", "stack", "two"),
    "batch_size": (1, 3, 8, 64),
    "block_chunks": (1, 2, 16),
    "shuffle": (True, False),
    "tail": ("short", "drop", "pad", "exact"),
    "ranks": (1, 2),
    "lanes": ("by rank", "three"),
    "budget": ("plenty", "floor"),
}

SPACE = Space(
    FACTORS,
    [
        needs("byte_order", ["big"], "dtype", {*FACTORS["dtype"]} - {"bool", "i1", "u1"}),
        needs("order", ["F"], "format", [2]),
        needs("order", ["transposed", "rolled", "rolled and swapped"], "format", [3]),
        needs("filters", ["delta", "delta shuffle"], "dtype", INTEGERS),
        needs("filters", ["fixedscaleoffset"], "dtype", [*INTEGERS, "f4", "f8"]),
        needs("filters", ["astype"], "dtype", {*INTEGERS} - {"i8", "u8"}),
        needs("filters", ["packbits"], "dtype", ["bool"]),
        needs("keys", ["v2 /", "v2 ."], "format", [3]),
        needs("shards", ["whole", "double", "uneven", "nested"], "format", [3]),
        needs("shards", ["none"], "shard_index", ["no shards"]),
        needs("shard_index", ["no shards"], "shards", ["none"]),
        needs("shards", ["none"], "around_shards", ["nothing"]),
        # Zarr alone decodes such shards: one kind of index is enough.
        needs("around_shards", ["gzip", "crc32c", "transposed"], "shard_index", ["end"]),
        # Zarr checks the shape of a shard before it is transposed, so that what lies in it has to
        # divide it both ways and is small: too much work in large shards.
        needs("around_shards", ["transposed"], "grid", {*FACTORS["grid"]} - {"larger"}),
        needs("around_shards", ["transposed"], "shards", ["whole", "double", "uneven"]),
        needs("around_shards", ["transposed"], "ndim", [1, 2, 3]),
        needs("grid", ["rectilinear"], "format", [3]),
        needs("fill", ["-9"], "dtype", [*SIGNED, *FLOATS, *COMPLEX, *TIMES]),
        needs("fill", ["no value"], "dtype", [*FLOATS, *COMPLEX, *TIMES]),
        needs("fill", ["infinity", "-0.0"], "dtype", [*FLOATS, *COMPLEX]),
        # Zarr reads two bytes in hex by Python's struct, to which all NaN are one.
        needs("fill", ["payload"], "dtype", ["f4", "f8", *COMPLEX]),
        needs("fill", ["payload"], "format", [3]),
        needs("fill", ["null"], "format", [2]),
        # Zarr scales the fill value too, where a stored chunk reaches past the array.
        needs("filters", ["fixedscaleoffset"], "fill", {*FACTORS["fill"]} - {"largest"}),
        needs("names", ["root"], "view", ["plain", "window", "shift"]),
        # One sample has no neighbours, and is no batch on two ranks but for these tails.
        needs("grid", ["one sample"], "view", ["plain", "stack", "two"]),
        needs("grid", ["one sample"], "tail", ["pad", "exact"]),
        needs("tail", ["drop"], "batch_size", [1, 3]),
    ],
    # What most stores are, and what most chains that are decoded without Zarr need.
    weights={
        ("filters", "none"): 8,
        ("shards", "none"): 3,
        ("around_shards", "nothing"): 3,
        ("missing", "none"): 4,
        ("missing", "some"): 2,
    },
)
