// What gemv.hpp adds to gemv.h: types, layouts, owners that move, exceptions.
#include <gemv.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(what) do { if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), std::exit(1); } while (0)

int main() {
    using complex = std::complex<double>;
    gemv::device first("cpu"), device = std::move(first);
    CHECK(first.get() == nullptr && device.id() == "cpu");
    const double a[] = {1, 2, 3, 4, 5, 6}; // 2 x 3 by rows, 3 x 2 by columns
    std::vector<double> x{1, 0, -1}, y(2);
    device.mv(gemv::matrix(a, 2, 3), gemv::vector(x), gemv::vector(y));
    CHECK(y[0] == -2 && y[1] == -2);
    device.mv(gemv::columns(a, 3, 2).t(), gemv::vector(x), gemv::vector(y), 2.0, 1.0);
    CHECK(y[0] == -6 && y[1] == -6);
    // Backwards, from the last entry.
    device.mv(gemv::matrix(a, 2, 2, 3), gemv::vector(&x[2], 2, -2), gemv::vector(&y[1], 2, -1));
    CHECK(y[1] == 1 && y[0] == 1); // -1 * 1 + 1 * 2, -1 * 4 + 1 * 5
    // One of the rows is a matrix as well.
    std::vector<double> product(2);
    device.mm(gemv::matrix(a, 1, 2), gemv::matrix(a + 2, 2, 2), gemv::matrix(product.data(), 1, 2));
    CHECK(product[0] == 13 && product[1] == 16);
    const std::vector<complex> i{{0, 1}};
    std::vector<complex> z(1);
    device.mv(gemv::matrix(i.data(), 1, 1).conj(), gemv::vector(i), gemv::vector(z), {0, 2});
    CHECK(z[0] == complex(0, 2));
    // A matrix of f32 with vectors of f64.
    const float narrow[] = {0.5f, 4};
    double wide[] = {2, 1}, sum = 0;
    device.mv(gemv::matrix(narrow, 1, 2), gemv::vector(wide, 2), gemv::vector(&sum, 1));
    CHECK(sum == 5);
    auto matrix = device.upload(gemv::matrix(a, 2, 3)), moved = std::move(matrix);
    CHECK(matrix.get() == nullptr);
    std::vector<double> back(6);
    device.download<double>(moved.array(), gemv::matrix(back.data(), 2, 3));
    CHECK(back == std::vector<double>(a, a + 6));
    // Packed: 32 weights of 1 in a block, and one of its rows.
    const std::vector<float> ones(64, 1);
    std::vector<float> sums(2), values(64);
    auto rounded = gemv::packed::quantize("q8_0", gemv::matrix(ones.data(), 2, 32)), packed = std::move(rounded);
    CHECK(rounded.get() == nullptr && packed.format() == "q8_0");
    CHECK(packed.shape() == std::make_pair(std::int64_t{2}, std::int64_t{32}));
    packed.dequantize(gemv::matrix(values.data(), 2, 32));
    const auto there = device.upload(packed);
    device.mv(there, gemv::vector(ones.data(), 32), gemv::vector(sums));
    CHECK(sums[0] == sums[1] && sums[0] == 32 * values[0]);
    device.mm(there.rows(1, 1), gemv::matrix(ones.data(), 32, 2), gemv::matrix(sums.data(), 1, 2), 2, 1);
    CHECK(sums[0] == 3 * 32 * values[0] && sums[1] == sums[0]);
    const void *blocks = nullptr;
    std::size_t size = 0;
    gemv::check(gemv_packed_blocks(packed.get(), &blocks, &size));
    const gemv::packed shared("q8_0", 2, 32, blocks, size);
    device.mv(shared, gemv::vector(ones.data(), 32), gemv::vector(sums));
    CHECK(sums[1] == 32 * values[0]);
    try {
        gemv::weights none("no such file");
        CHECK(!"opened");
    } catch (const gemv::error &e) {
        CHECK(e.status() == GEMV_ERROR_ARGUMENT);
    }
    try {
        gemv::device none(std::string("abacus:1"));
        CHECK(!"opened");
    } catch (const gemv::error &e) {
        CHECK(e.status() == GEMV_ERROR_NO_DEVICE && std::string(e.what()).find("abacus:1") != std::string::npos);
    }
    // What is const is not written.
    gemv::array_ref<const double> read = gemv::vector(y);
    const auto all = moved.array();
    const auto of_x = gemv::vector(x);
    CHECK(gemv_mv(device.get(), nullptr, &all.raw, &of_x.raw, nullptr, &read.raw) == GEMV_ERROR_ARGUMENT);
    std::puts("gemv.hpp: as it should");
}
