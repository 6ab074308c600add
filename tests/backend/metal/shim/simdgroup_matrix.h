// Matrices of 8×8 that a simdgroup holds. Which thread has which element is not documented: here a
// thread has two that no GPU gives it, so that nothing can count on it.
#pragma once

namespace metal {

template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "matrices are 8×8");
  T held[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

}  // namespace metal

namespace shim {

// The place of a thread's element: a permutation of the 64 that mixes rows and columns.
inline uint place(uint lane, uint element) { return (lane * 2 + element) * 37 % 64; }

template <class T> struct Matrix {
  T at[8][8];
};

// The whole matrix, in every thread of the simdgroup.
template <class T> inline Matrix<T> gathered(const metal::simdgroup_matrix<T, 8, 8>& m) {
  struct Pair { T held[2]; } own = {{m.held[0], m.held[1]}};
  static_assert(sizeof(Pair) <= 16, "a room has 16 bytes");
  Thread& me = *here.own;
  auto& room = here.rooms[me.index / SIMD][me.turn++ & 1];
  __builtin_memcpy(room[me.index % SIMD], &own, sizeof own);
  wait(AT_SIMD);
  Matrix<T> made;
  for (uint lane = 0; lane < SIMD; ++lane) {
    Pair pair;
    __builtin_memcpy(&pair, room[lane], sizeof pair);
    for (uint e = 0; e < 2; ++e) made.at[place(lane, e) / 8][place(lane, e) % 8] = pair.held[e];
  }
  return made;
}

}  // namespace shim

namespace metal {

template <class T, int C, int R> inline simdgroup_matrix<T, C, R>
make_filled_simdgroup_matrix(T x) {
  return {{x, x}};
}

template <class T> inline void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& to, const T* from, ulong elements_per_row, ulong, bool transposed) {
  shim::wait(shim::AT_SIMD);
  for (uint e = 0; e < 2; ++e) {
    const uint at = shim::place(shim::here.own->index % shim::SIMD, e), row = at / 8, column = at % 8;
    to.held[e] = transposed ? from[column * elements_per_row + row]
                            : from[row * elements_per_row + column];
  }
}

template <class T> inline void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& to, const T* from, ulong elements_per_row) {
  simdgroup_load(to, from, elements_per_row, 0, false);
}

template <class T> inline void simdgroup_store(
    simdgroup_matrix<T, 8, 8> from, T* to, ulong elements_per_row) {
  shim::wait(shim::AT_SIMD);
  for (uint e = 0; e < 2; ++e) {
    const uint at = shim::place(shim::here.own->index % shim::SIMD, e);
    to[at / 8 * elements_per_row + at % 8] = from.held[e];
  }
}

template <class T> inline void simdgroup_multiply_accumulate(
    simdgroup_float8x8& d, simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b,
    simdgroup_float8x8 c) {
  const auto left = shim::gathered(a);
  const auto right = shim::gathered(b);
  for (uint e = 0; e < 2; ++e) {
    const uint at = shim::place(shim::here.own->index % shim::SIMD, e);
    float total = c.held[e];
    for (uint k = 0; k < 8; ++k) total += float(left.at[at / 8][k]) * float(right.at[k][at % 8]);
    d.held[e] = total;
  }
}

}  // namespace metal
