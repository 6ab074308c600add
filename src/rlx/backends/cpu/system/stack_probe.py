"""`__chkstk` of Windows for x86-64: LLVM calls it where a function takes a page of stack or more.

Windows adds pages to a stack one after the other, when the page below the last is touched, so that
a frame that skips one would end the process. rax holds the bytes of the frame; all registers stay.
"""

from __future__ import annotations

STACK_PROBE = "__chkstk"
_CODE = bytes.fromhex(
    "51"  # push rcx
    "50"  # push rax
    "488d4c2418"  # lea rcx, [rsp + 24]: the stack pointer of the caller
    "483d00100000"  # cmp rax, 4096
    "7218"  # jb rest
    "4881e900100000"  # page: sub rcx, 4096
    "488509"  # test [rcx], rcx
    "482d00100000"  # sub rax, 4096
    "483d00100000"  # cmp rax, 4096
    "73e8"  # jae page
    "4829c1"  # rest: sub rcx, rax
    "488509"  # test [rcx], rcx
    "58"  # pop rax
    "59"  # pop rcx
    "c3"  # ret
)


def probe_text() -> str:
    """Its bytes: LLVM's text has no stack pointer. Code and constants share their pages."""
    words = "".join(f"\\{b:02x}" for b in _CODE)
    return f'@{STACK_PROBE} = constant [{len(_CODE)} x i8] c"{words}", align 16\n'
