// gemv for C++17 and later, header only: gemv.h with owners, exceptions and types.
//
//     gemv::device device("cpu");
//     std::vector<double> a{1, 2, 3, 4}, x{1, 1}, y(2);
//     device.mv(gemv::matrix(a.data(), 2, 2), gemv::vector(x), gemv::vector(y));
//
// Where the compiler has std::mdspan (C++23), gemv::array(span) takes one, of any layout with strides.
#ifndef GEMV_HPP
#define GEMV_HPP

#include <gemv.h>

#include <complex>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_mdspan
#include <mdspan>
#endif

namespace gemv {

// What a function of gemv.h has returned, with its sentence.
class error : public std::runtime_error {
public:
    explicit error(gemv_status status) : std::runtime_error(gemv_last_error()), status_(status) {}
    gemv_status status() const noexcept { return status_; }

private:
    gemv_status status_;
};

inline void check(gemv_status status) {
    if (status != GEMV_OK) throw error(status);
}

// The number of an element type. For a type of 16 bits of your own, specialise it, with `using factor = float`.
template <class T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr gemv_dtype value = GEMV_F32; using factor = float; };
template <> struct dtype_of<double> { static constexpr gemv_dtype value = GEMV_F64; using factor = double; };
template <> struct dtype_of<std::complex<float>> {
    static constexpr gemv_dtype value = GEMV_C64;
    using factor = std::complex<float>;
};
template <> struct dtype_of<std::complex<double>> {
    static constexpr gemv_dtype value = GEMV_C128;
    using factor = std::complex<double>;
};

// An array whose elements are known: const T is one that is read. It does not own its memory.
template <class T> struct array_ref {
    gemv_array raw;

    array_ref t() const noexcept { return {gemv_transposed(raw)}; }
    // The conjugate, of the matrix of a product.
    array_ref conj() const noexcept {
        array_ref other = *this;
        other.raw.flags ^= GEMV_CONJUGATED;
        return other;
    }
    operator array_ref<const T>() const noexcept {
        array_ref<const T> other{raw};
        other.raw.flags |= GEMV_READ_ONLY;
        return other;
    }
};

namespace detail {
template <class T> array_ref<T> checked(gemv_array raw) noexcept {
    if (std::is_const_v<T>) raw.flags |= GEMV_READ_ONLY;
    return {raw};
}
template <class T> constexpr gemv_dtype dtype = dtype_of<std::remove_const_t<T>>::value;
}

// n entries, `step` apart. `data` is the first of them, also where the step is negative.
template <class T> array_ref<T> vector(T *data, std::int64_t n, std::int64_t step = 1) noexcept {
    gemv_array raw = gemv_vector_of(data, detail::dtype<T>, n);
    raw.stride[0] = step;
    // Offsets are not negative: the memory begins at the lowest entry.
    if (step < 0 && n > 0) raw.data = const_cast<std::remove_const_t<T> *>(data) + step * (n - 1), raw.offset = -step * (n - 1);
    return detail::checked<T>(raw);
}

// A container with data() and size().
template <class C, class T = std::remove_pointer_t<decltype(std::declval<C &>().data())>>
array_ref<T> vector(C &all) noexcept {
    return vector(all.data(), static_cast<std::int64_t>(all.size()));
}

// m rows of n entries, row by row, `apart` entries from one row to the next.
template <class T> array_ref<T> matrix(T *data, std::int64_t m, std::int64_t n, std::int64_t apart = 0) noexcept {
    gemv_array raw = gemv_matrix_of(data, detail::dtype<T>, m, n);
    if (apart != 0) raw.stride[0] = apart;
    return detail::checked<T>(raw);
}

// m rows of n entries, column by column, `apart` entries from one column to the next.
template <class T> array_ref<T> columns(T *data, std::int64_t m, std::int64_t n, std::int64_t apart = 0) noexcept {
    return detail::checked<T>(gemv_columns_of(data, detail::dtype<T>, m, n, apart != 0 ? apart : m));
}

#ifdef __cpp_lib_mdspan
template <class T, class Extents, class Layout, class Accessor>
array_ref<T> array(std::mdspan<T, Extents, Layout, Accessor> span) noexcept {
    static_assert(Extents::rank() >= 1 && Extents::rank() <= 3, "an array has one to three axes");
    static_assert(std::is_same_v<typename Accessor::data_handle_type, T *>, "the elements lie in memory");
    gemv_array raw = gemv_vector_of(span.data_handle(), detail::dtype<T>, 1);
    raw.ndim = Extents::rank();
    for (std::size_t axis = 0; axis < Extents::rank(); axis++) {
        raw.dim[axis] = static_cast<std::int64_t>(span.extent(axis));
        raw.stride[axis] = static_cast<std::int64_t>(span.stride(axis));
    }
    return detail::checked<T>(raw);
}
#endif

template <class T> class resident;
class packed;

// A device. Copies are not made; it can be moved.
class device {
public:
    explicit device(const char *name = nullptr) { check(gemv_device_open(name, &handle_)); }
    explicit device(const std::string &name) : device(name.c_str()) {}
    // Takes a handle of gemv.h, and frees it.
    explicit device(gemv_device *handle) noexcept : handle_(handle) {}
    static device on_queue(void *queue) {
        gemv_device *handle = nullptr;
        check(gemv_device_on_queue(queue, &handle));
        return device(handle);
    }
    static device on_stream(int ordinal, void *stream) {
        gemv_device *handle = nullptr;
        check(gemv_device_on_stream(ordinal, stream, &handle));
        return device(handle);
    }
    device(device &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    device &operator=(device &&other) noexcept { return std::swap(handle_, other.handle_), *this; }
    device(const device &) = delete;
    device &operator=(const device &) = delete;
    ~device() { gemv_device_free(handle_); }

    gemv_device *get() const noexcept { return handle_; }
    std::string id() const { return gemv_device_id(handle_); }
    void synchronize() const { check(gemv_device_synchronize(handle_)); }

    // y = alpha A x + beta y.
    template <class A, class X, class Y>
    void mv(const array_ref<A> &a, const array_ref<X> &x, const array_ref<Y> &y,
            typename dtype_of<Y>::factor alpha = 1, typename dtype_of<Y>::factor beta = 0) const {
        static_assert(std::is_same_v<std::remove_const_t<X>, Y>, "x and y are of one type, and y can be written");
        check(gemv_mv(handle_, &alpha, &a.raw, &x.raw, &beta, &y.raw));
    }

    // Y = alpha A X + beta Y.
    template <class A, class X, class Y>
    void mm(const array_ref<A> &a, const array_ref<X> &x, const array_ref<Y> &y,
            typename dtype_of<Y>::factor alpha = 1, typename dtype_of<Y>::factor beta = 0) const {
        static_assert(std::is_same_v<std::remove_const_t<X>, Y>, "X and Y are of one type, and Y can be written");
        check(gemv_mm(handle_, &alpha, &a.raw, &x.raw, &beta, &y.raw));
    }

    // The same with a packed matrix.
    template <class X, class Y>
    void mv(const packed &a, const array_ref<X> &x, const array_ref<Y> &y, float alpha = 1, float beta = 0) const;
    template <class X, class Y>
    void mm(const packed &a, const array_ref<X> &x, const array_ref<Y> &y, float alpha = 1, float beta = 0) const;

    template <class T> resident<std::remove_const_t<T>> upload(const array_ref<T> &from) const;
    packed upload(const packed &from) const;

    // An array on the device, to one of the program's.
    template <class T> void download(const array_ref<const T> &from, const array_ref<T> &to) const {
        check(gemv_download(handle_, &from.raw, &to.raw));
    }

private:
    gemv_device *handle_ = nullptr;
};

// An array in a device's memory.
template <class T> class resident {
public:
    // Takes a handle of gemv.h, and frees it.
    explicit resident(gemv_matrix *handle) noexcept : handle_(handle) {}
    resident(resident &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    resident &operator=(resident &&other) noexcept { return std::swap(handle_, other.handle_), *this; }
    resident(const resident &) = delete;
    resident &operator=(const resident &) = delete;
    ~resident() { gemv_matrix_free(handle_); }

    gemv_matrix *get() const noexcept { return handle_; }
    array_ref<T> array() const {
        array_ref<T> all;
        check(gemv_matrix_array(handle_, &all.raw));
        return all;
    }

private:
    gemv_matrix *handle_ = nullptr;
};

template <class T> resident<std::remove_const_t<T>> device::upload(const array_ref<T> &from) const {
    gemv_matrix *handle = nullptr;
    check(gemv_matrix_upload(handle_, &from.raw, &handle));
    return resident<std::remove_const_t<T>>(handle);
}

// A matrix of packed weights.
class packed {
public:
    // Takes a handle of gemv.h, and frees it.
    explicit packed(gemv_packed *handle) noexcept : handle_(handle) {}
    // From its blocks, which are not copied: they stay as long as this and its rows.
    packed(const std::string &format, std::int64_t rows, std::int64_t columns, const void *blocks, std::size_t size) {
        check(gemv_packed_create(format.c_str(), rows, columns, blocks, size, &handle_));
    }
    static packed quantize(const std::string &format, const array_ref<const float> &from) {
        gemv_packed *handle = nullptr;
        check(gemv_packed_quantize(format.c_str(), &from.raw, &handle));
        return packed(handle);
    }
    packed(packed &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    packed &operator=(packed &&other) noexcept { return std::swap(handle_, other.handle_), *this; }
    packed(const packed &) = delete;
    packed &operator=(const packed &) = delete;
    ~packed() { gemv_packed_free(handle_); }

    gemv_packed *get() const noexcept { return handle_; }
    std::string format() const { return gemv_packed_format(handle_); }
    // Rows and columns.
    std::pair<std::int64_t, std::int64_t> shape() const {
        std::pair<std::int64_t, std::int64_t> of;
        check(gemv_packed_shape(handle_, &of.first, &of.second));
        return of;
    }
    packed rows(std::int64_t first, std::int64_t count) const {
        gemv_packed *handle = nullptr;
        check(gemv_packed_rows(handle_, first, count, &handle));
        return packed(handle);
    }
    void dequantize(const array_ref<float> &to) const { check(gemv_packed_dequantize(handle_, &to.raw)); }

private:
    gemv_packed *handle_ = nullptr;
};

template <class X, class Y>
void device::mv(const packed &a, const array_ref<X> &x, const array_ref<Y> &y, float alpha, float beta) const {
    static_assert(std::is_same_v<std::remove_const_t<X>, Y>, "x and y are of one type, and y can be written");
    check(gemv_packed_mv(handle_, &alpha, a.get(), &x.raw, &beta, &y.raw));
}

template <class X, class Y>
void device::mm(const packed &a, const array_ref<X> &x, const array_ref<Y> &y, float alpha, float beta) const {
    static_assert(std::is_same_v<std::remove_const_t<X>, Y>, "X and Y are of one type, and Y can be written");
    check(gemv_packed_mm(handle_, &alpha, a.get(), &x.raw, &beta, &y.raw));
}

inline packed device::upload(const packed &from) const {
    gemv_packed *handle = nullptr;
    check(gemv_packed_upload(handle_, from.get(), &handle));
    return packed(handle);
}

// A file of weights, GGUF or safetensors.
class weights {
public:
    explicit weights(const std::string &path, std::uint32_t gptq_version = 1) {
        check(gemv_weights_open(path.c_str(), gptq_version, &handle_));
    }
    weights(weights &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    weights &operator=(weights &&other) noexcept { return std::swap(handle_, other.handle_), *this; }
    weights(const weights &) = delete;
    weights &operator=(const weights &) = delete;
    ~weights() { gemv_weights_free(handle_); }

    gemv_weights *get() const noexcept { return handle_; }
    // A packed matrix, which keeps the file open, and a factor of its products.
    std::pair<packed, float> matrix(const std::string &name) const {
        gemv_packed *handle = nullptr;
        float alpha = 1;
        check(gemv_weights_packed(handle_, name.c_str(), &handle, &alpha));
        return {packed(handle), alpha};
    }

private:
    gemv_weights *handle_ = nullptr;
};

} // namespace gemv
#endif
