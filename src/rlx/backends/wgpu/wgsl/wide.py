"""Integers of 64 bits as two words, `vec2<u32>(low, high)`: exact, and wrapping as they do.

No function has a second return, which compilers that inline functions turn into a loop, and few
have branches.
Names end in i for signed and in u for unsigned where that makes a difference.
"""

from __future__ import annotations

V = "vec2<u32>"

WIDE_HELPERS: dict[str, str] = {
    "add64": f"""fn add64(a: {V}, b: {V}) -> {V} {{
 let low = a.x + b.x;
 return {V}(low, a.y + b.y + select(0u, 1u, low < a.x));
}}""",
    "sub64": f"""fn sub64(a: {V}, b: {V}) -> {V} {{
 return {V}(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}}""",
    "neg64": f"fn neg64(a: {V}) -> {V} {{ return sub64({V}(), a); }}",
    # by halves of words: (aₕ 2¹⁶ + aₗ)(bₕ 2¹⁶ + bₗ)
    "full64": f"""fn full64(a: u32, b: u32) -> {V} {{
 let al = a & 0xffffu; let ah = a >> 16u;
 let bl = b & 0xffffu; let bh = b >> 16u;
 let low = al * bl;
 let one = ah * bl + (low >> 16u);
 let two = al * bh + (one & 0xffffu);
 return {V}(a * b, ah * bh + (one >> 16u) + (two >> 16u));
}}""",
    "mul64": f"""fn mul64(a: {V}, b: {V}) -> {V} {{
 let low = full64(a.x, b.x);
 return {V}(low.x, low.y + a.x * b.y + a.y * b.x);
}}""",
    "eq64": f"fn eq64(a: {V}, b: {V}) -> bool {{ return all(a == b); }}",
    "lt64u": f"""fn lt64u(a: {V}, b: {V}) -> bool {{
 return (a.y < b.y) | ((a.y == b.y) & (a.x < b.x));
}}""",
    "lt64i": f"""fn lt64i(a: {V}, b: {V}) -> bool {{
 return (bitcast<i32>(a.y) < bitcast<i32>(b.y)) | ((a.y == b.y) & (a.x < b.x));
}}""",
    "min64u": f"fn min64u(a: {V}, b: {V}) -> {V} {{ return select(b, a, lt64u(a, b)); }}",
    "max64u": f"fn max64u(a: {V}, b: {V}) -> {V} {{ return select(a, b, lt64u(a, b)); }}",
    "min64i": f"fn min64i(a: {V}, b: {V}) -> {V} {{ return select(b, a, lt64i(a, b)); }}",
    "max64i": f"fn max64i(a: {V}, b: {V}) -> {V} {{ return select(a, b, lt64i(a, b)); }}",
    "shl64": f"""fn shl64(a: {V}, b: {V}) -> {V} {{
 let n = b.x & 31u;
 let low = a.x << n;
 let high = (a.y << n) | ((a.x >> 1u) >> (31u - n));
 return select({V}(low, high), {V}(0u, low), (b.x & 32u) != 0u);
}}""",
    "shr64u": f"""fn shr64u(a: {V}, b: {V}) -> {V} {{
 let n = b.x & 31u;
 let low = (a.x >> n) | ((a.y << 1u) << (31u - n));
 let high = a.y >> n;
 return select({V}(low, high), {V}(high, 0u), (b.x & 32u) != 0u);
}}""",
    "shr64i": f"""fn shr64i(a: {V}, b: {V}) -> {V} {{
 let n = b.x & 31u;
 let low = (a.x >> n) | ((a.y << 1u) << (31u - n));
 let high = bitcast<u32>(bitcast<i32>(a.y) >> n);
 let sign = bitcast<u32>(bitcast<i32>(a.y) >> 31u);
 return select({V}(low, high), {V}(high, sign), (b.x & 32u) != 0u);
}}""",
    # long division, a bit at a time; quotient and remainder, which is less than the divisor
    "divmod64": f"""fn divmod64(a: {V}, b: {V}) -> vec4<u32> {{
 var q = a;
 var r = {V}();
 if ((a.y | b.y) == 0u) {{
  let by = max(b.x, 1u);
  q.x = a.x / by;
  r.x = a.x % by;
 }} else {{
  for (var i = 0i; i < 64i; i = i + 1i) {{
   let carry = r.y >> 31u;
   r = {V}((r.x << 1u) | (q.y >> 31u), (r.y << 1u) | (r.x >> 31u));
   q = {V}(q.x << 1u, (q.y << 1u) | (q.x >> 31u));
   let fits = (carry == 1u) | !lt64u(r, b);
   r = select(r, sub64(r, b), fits);
   q.x = q.x | select(0u, 1u, fits);
  }}
 }}
 return vec4<u32>(q, r);
}}""",
    "abs64": f"fn abs64(a: {V}) -> {V} {{ return select(a, neg64(a), (a.y >> 31u) == 1u); }}",
    "div64u": f"fn div64u(a: {V}, b: {V}) -> {V} {{ return divmod64(a, b).xy; }}",
    "rem64u": f"fn rem64u(a: {V}, b: {V}) -> {V} {{ return divmod64(a, b).zw; }}",
    "div64i": f"""fn div64i(a: {V}, b: {V}) -> {V} {{
 let q = divmod64(abs64(a), abs64(b)).xy;
 return select(q, neg64(q), ((a.y ^ b.y) >> 31u) == 1u);
}}""",
    "rem64i": f"""fn rem64i(a: {V}, b: {V}) -> {V} {{
 let r = divmod64(abs64(a), abs64(b)).zw;
 return select(r, neg64(r), (a.y >> 31u) == 1u);
}}""",
    "wide_i32": f"""fn wide_i32(a: i32) -> {V} {{
 return {V}(bitcast<u32>(a), bitcast<u32>(a >> 31u));
}}""",
    # rounded to nearest even: the 24 highest bits, and what is below them
    "f32_of_64u": f"""fn f32_of_64u(a: {V}) -> f32 {{
 let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
 let top = shl64(a, {V}(zeros, 0u));
 let kept = top.y >> 8u;
 let above = ((top.y & 0x7fu) | top.x) != 0u;
 let up = ((top.y & 0x80u) != 0u) & (above | ((kept & 1u) == 1u));
 let bits = ((190u - zeros) << 23u) + (kept & 0x7fffffu) + select(0u, 1u, up);
 return bitcast<f32>(select(bits, 0u, zeros == 64u));
}}""",
    "f32_of_64i": f"""fn f32_of_64i(a: {V}) -> f32 {{
 let size = f32_of_64u(abs64(a));
 return select(size, -size, (a.y >> 31u) == 1u);
}}""",
    "wide_f32": f"""fn wide_f32(x: f32) -> {V} {{
 let bits = bitcast<u32>(x);
 let exponent = i32((bits >> 23u) & 0xffu) - 150i;
 let full = {V}((bits & 0x7fffffu) | 0x800000u, 0u);
 let up = shl64(full, {V}(u32(clamp(exponent, 0i, 40i)), 0u));
 let down = {V}(full.x >> u32(clamp(-exponent, 0i, 31i)), 0u);
 let made = select(up, down, exponent < 0i);
 return select(made, neg64(made), (bits >> 31u) == 1u);
}}""",
}
