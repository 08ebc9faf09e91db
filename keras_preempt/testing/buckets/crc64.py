"""CRC-64/NVME, which S3 calls CRC64NVME and Azure x-ms-content-crc64. In plain Python: some MB a second."""

from __future__ import annotations

_POLYNOMIAL = 0x9A6C9329AC4BC9B5  # The lowest bit first.
_ALL = 0xFFFFFFFFFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


def crc64(data: bytes) -> int:
    value = _ALL
    for byte in data:
        value = value >> 8 ^ _TABLE[value & 0xFF ^ byte]
    return value ^ _ALL
