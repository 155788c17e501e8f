// How one recurrence is laid over the threads of a cluster of C blocks, NW warps each.
//
// Every unit of the state has ROWS rows of weights over N inputs. A block owns NC = N / C units. The weights never leave
// the registers: a lane holds J units x ROWS rows x 16 columns. The LC = N / 16 lanes that share rows sum their parts
// by folding: each exchange halves the number of units that a lane keeps, until every lane has one unit, D = LC / J lanes
// the same one. So unit (lane / D) of a warp belongs to D neighbouring lanes, which share the work on it.
#pragma once
#include "fold.cuh"

constexpr int LC = N / 16;        // lanes along the columns
constexpr int D = LC / J;         // lanes a unit
constexpr int CW = 32 / D;        // units a warp
constexpr int NC = N / C;         // units a block
constexpr int NW = NC / CW;       // warps a block
constexpr int THREADS = 32 * NW;
static_assert(D * J * 16 == N && CW * NW == NC, "the tile does not cover the matrix");

struct Place {
    int lane, warp, rank, sequence;
    int part;    // which of the D lanes of its unit
    int column;  // which of the LC lanes along the columns
    int local;   // the unit within the block
    int unit;    // the unit
};

DEVICE Place place() {
    Place p;
    p.lane = threadIdx.x % 32;
    p.warp = threadIdx.x / 32;
    p.rank = blockIdx.x % C;
    p.sequence = blockIdx.x / C;
    p.part = p.lane % D;
    p.column = p.lane % LC;
    p.local = p.warp * CW + p.lane / D;
    p.unit = p.rank * NC + p.local;
    return p;
}

DEVICE int first_unit(const Place& p) { return p.rank * NC + p.warp * CW + p.lane / LC * J; }
DEVICE int input_at(const Place& p, int m, int e) { return 4 * (p.column + LC * m) + e; }

// y[r] = sum_k W[r, unit, k] x[k]; x (N) in shared memory.
struct Rows {
    float w[J][ROWS][16];

    DEVICE void load(const Place& p, int r, const float* matrix, int n) {
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int row = first_unit(p) + j, column = input_at(p, i / 4, i % 4);
                w[j][r][i] = row < n && column < n ? matrix[(long long)row * n + column] : 0.f;
            }
    }

    DEVICE void times(const Place& p, const float* x, float* y) const {
        float acc[J][ROWS] = {};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const float4 part = reinterpret_cast<const float4*>(x)[p.column + LC * m];
#pragma unroll
            for (int j = 0; j < J; ++j)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    acc[j][r] += w[j][r][4 * m] * part.x;
                    acc[j][r] += w[j][r][4 * m + 1] * part.y;
                    acc[j][r] += w[j][r][4 * m + 2] * part.z;
                    acc[j][r] += w[j][r][4 * m + 3] * part.w;
                }
        }
        fold<J, LC / 2, 1, ROWS>(acc, p.lane);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) y[r] = acc[0][r];
    }
};

// y = sum_{r, k} W[r, k, unit] x[r, k]: the transposed product; x (ROWS, N) in shared memory.
struct Columns {
    float w[J][ROWS][16];

    DEVICE void load(const Place& p, int r, const float* matrix, int n) {
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int column = first_unit(p) + j, row = input_at(p, i / 4, i % 4);
                w[j][r][i] = row < n && column < n ? matrix[(long long)row * n + column] : 0.f;
            }
    }

    DEVICE float times(const Place& p, const float* x) const {
        float acc[J][1], quarter[J][4] = {};  // four sums a unit: chains of additions short enough to overlap
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const float4 part = reinterpret_cast<const float4*>(x + r * N)[p.column + LC * m];
#pragma unroll
                for (int j = 0; j < J; ++j) {
                    quarter[j][0] += w[j][r][4 * m] * part.x;
                    quarter[j][1] += w[j][r][4 * m + 1] * part.y;
                    quarter[j][2] += w[j][r][4 * m + 2] * part.z;
                    quarter[j][3] += w[j][r][4 * m + 3] * part.w;
                }
            }
#pragma unroll
        for (int j = 0; j < J; ++j) acc[j][0] = (quarter[j][0] + quarter[j][1]) + (quarter[j][2] + quarter[j][3]);
        fold<J, LC / 2, 1, 1>(acc, p.lane);
        return acc[0][0];
    }
};

// Put this unit's x into the same place of every block of the cluster; its D lanes share the C stores.
DEVICE void publish(const Place& p, float* here, float x) {
    for (int rank = p.part; rank < C; rank += D) store_at(here, rank, x);
}
