// A matrix of packed weights with gemv.hpp: rounded from numbers, uploaded, and some of its rows.
// c++ -std=c++17 packed.cpp $(pkg-config --cflags --libs gemv)
#include <gemv.hpp>

#include <iostream>
#include <vector>

int main(int argc, char **argv) try {
    gemv::device device(argc > 1 ? argv[1] : nullptr);
    std::vector<float> a(4 * 64), x(64, 1), y(4);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 64; j++) a[i * 64 + j] = (i + 1) * (j % 2 ? 0.5f : -1);
    const auto packed = gemv::packed::quantize("q4_0", gemv::matrix(a.data(), 4, 64));
    const auto resident = device.upload(packed); // once
    device.mv(resident, gemv::vector(x), gemv::vector(y));
    std::cout << resident.format() << ": " << y[0] << " " << y[3] << "\n";
    device.mv(resident.rows(3, 1), gemv::vector(x), gemv::vector(y.data(), 1), 2);
    std::cout << "twice row 3: " << y[0] << "\n";
    // With a file: const auto [matrix, alpha] = gemv::weights("model.gguf").matrix("blk.0.ffn_up.weight");
    return 0;
} catch (const gemv::error &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
