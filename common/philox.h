// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A number is a pure function of a key and a counter, so it does not depend on layout, order or device, and there is no
// state to save. Everything here gives the same bits on every machine, compiler and device: integer operations, and
// IEEE operations that are correctly rounded everywhere (explicit fma, one division, one square root); no libm.
// Thread-safe: pure functions. Usable in device code.
#ifndef SLIPWAY_COMMON_PHILOX_H_
#define SLIPWAY_COMMON_PHILOX_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#ifdef __CUDACC__
#define SLIPWAY_HOST_DEVICE __host__ __device__
#else
#define SLIPWAY_HOST_DEVICE
#endif

namespace slipway {

struct PhiloxKey {
  uint32_t k0 = 0, k1 = 0;
};

// Four 32-bit words: a counter, or the four random words that it gives.
struct PhiloxBlock {
  uint32_t v[4] = {0, 0, 0, 0};
};

SLIPWAY_HOST_DEVICE inline PhiloxBlock Philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter.v[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter.v[2];
    counter = {{static_cast<uint32_t>(p1 >> 32) ^ counter.v[1] ^ key.k0, static_cast<uint32_t>(p1),
                static_cast<uint32_t>(p0 >> 32) ^ counter.v[3] ^ key.k1, static_cast<uint32_t>(p0)}};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return counter;
}

// Strictly inside (0, 1), on the centres of 2^23 equal cells. Exact, so contraction cannot change it. (With 24 bits the
// largest value would round to 1.)
SLIPWAY_HOST_DEVICE inline float PhiloxUniform(uint32_t word) {
  return static_cast<float>(word >> 9) * 0x1p-23f + 0x1p-24f;
}

namespace philox_internal {

// -log(x) for normal x in (0, 1): x = m * 2^e with m in [sqrt(1/2), sqrt(2)), log(m) = 2 artanh((m-1)/(m+1)).
SLIPWAY_HOST_DEVICE inline double MinusLog(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  memcpy(&m, &bits, sizeof(m));
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double series = 1.0 / 23;
  for (int odd = 21; odd >= 1; odd -= 2) series = fma(series, s2, 1.0 / odd);
  return -fma(static_cast<double>(exponent), 0x1.62e42fefa39efp-1, 2.0 * s * series);
}

SLIPWAY_HOST_DEVICE inline double Polynomial(const double (&coefficients)[8], double x) {
  double value = coefficients[7];
  for (int i = 6; i >= 0; --i) value = fma(value, x, coefficients[i]);
  return value;
}

}  // namespace philox_internal

// Standard normal by the inverse of its distribution function at (word + 1/2) / 2^32: M. J. Wichura, Algorithm AS 241
// (PPND16), relative error about 1e-15. |result| <= 6.34. AS 241's last branch (beyond 7 sigma) cannot be reached.
SLIPWAY_HOST_DEVICE inline double PhiloxNormal(uint32_t word) {
  constexpr double kA[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                            1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                            3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kB[8] = {1.0,
                            4.2313330701600911252e+1,
                            6.8718700749205790830e+2,
                            5.3941960214247511077e+3,
                            2.1213794301586595867e+4,
                            3.9307895800092710610e+4,
                            2.8729085735721942674e+4,
                            5.2264952788528545610e+3};
  constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                            3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[8] = {1.0,
                            2.05319162663775882187e0,
                            1.67638483018380384940e0,
                            6.89767334985100004550e-1,
                            1.48103976427480074590e-1,
                            1.51986665636164571966e-2,
                            5.47593808499534494600e-4,
                            1.05075007164441684324e-9};
  const double p = fma(static_cast<double>(word), 0x1p-32, 0x1p-33);
  const double q = p - 0.5;
  if (fabs(q) <= 0.425) {
    const double r = fma(-q, q, 0.180625);
    return philox_internal::Polynomial(kA, r) * q / philox_internal::Polynomial(kB, r);
  }
  const double r = sqrt(philox_internal::MinusLog(q < 0 ? p : 1.0 - p)) - 1.6;
  const double magnitude = philox_internal::Polynomial(kC, r) / philox_internal::Polynomial(kD, r);
  return q < 0 ? -magnitude : magnitude;
}

// What a key is for. Numbers of different streams have nothing in common, whatever their seeds.
enum class RandomStream : uint64_t {
  kInitialWeights = 1,
  kDropout = 2,
  kGeneration = 3,
  kSampleOrder = 4,
  kMockData = 5
};

namespace philox_internal {

// SplitMix64's finaliser: a bijection that spreads every bit.
SLIPWAY_HOST_DEVICE inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

SLIPWAY_HOST_DEVICE inline PhiloxKey KeyOf(uint64_t x) {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

}  // namespace philox_internal

// Initial weights: one key a parameter, one word an element of the global tensor. Element i of a tensor is word i % 4
// of the block at InitialWeightCounter(i / 4).
inline PhiloxKey InitialWeightKey(uint64_t seed, std::string_view parameter_name) {
  uint64_t name_hash = 0xCBF29CE484222325ull;  // FNV-1a
  for (const char c : parameter_name) name_hash = (name_hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  using philox_internal::Mix;
  return philox_internal::KeyOf(Mix(Mix(Mix(static_cast<uint64_t>(RandomStream::kInitialWeights)) ^ seed) ^ name_hash));
}

SLIPWAY_HOST_DEVICE inline PhiloxBlock InitialWeightCounter(uint64_t global_index_div_4) {
  return {{static_cast<uint32_t>(global_index_div_4), static_cast<uint32_t>(global_index_div_4 >> 32), 0, 0}};
}

// Dropout: one key a (seed, step, site), where a site is one dropout of one layer; the counter says which sample of the
// stream, which token of it and which group of four neighbouring features. Feature f is word f % 4 of the block.
inline PhiloxKey DropoutKey(uint64_t seed, uint64_t step, uint64_t site) {
  using philox_internal::Mix;
  return philox_internal::KeyOf(Mix(Mix(Mix(Mix(static_cast<uint64_t>(RandomStream::kDropout)) ^ seed) ^ step) ^ site));
}

SLIPWAY_HOST_DEVICE inline PhiloxBlock DropoutCounter(uint64_t sample, uint32_t token, uint32_t feature_div_4) {
  return {{feature_div_4, token, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)}};
}

// Sampling of generated text: word 0 of the block decides the token at that position of the row.
inline PhiloxKey GenerationKey(uint64_t seed) {
  using philox_internal::Mix;
  return philox_internal::KeyOf(Mix(Mix(static_cast<uint64_t>(RandomStream::kGeneration)) ^ seed));
}

inline PhiloxBlock GenerationCounter(uint64_t position) {
  return {{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}};
}

// The order of a dataset's samples in one epoch.
inline PhiloxKey SampleOrderKey(uint64_t seed, uint64_t epoch) {
  using philox_internal::Mix;
  return philox_internal::KeyOf(Mix(Mix(Mix(static_cast<uint64_t>(RandomStream::kSampleOrder)) ^ seed) ^ epoch));
}

// Made-up data: word 0 of the block decides the token at that place of the sample.
inline PhiloxKey MockDataKey(uint64_t seed) {
  using philox_internal::Mix;
  return philox_internal::KeyOf(Mix(Mix(static_cast<uint64_t>(RandomStream::kMockData)) ^ seed));
}

inline PhiloxBlock MockDataCounter(uint64_t sample, uint32_t token) {
  return {{token, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), 0}};
}

}  // namespace slipway

#endif  // SLIPWAY_COMMON_PHILOX_H_
