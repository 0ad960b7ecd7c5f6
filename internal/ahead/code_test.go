package ahead

import (
	"debug/elf"
	"os"
	"reflect"
	"testing"
)

// TestWhereTheCodeIs looks for this function in it, in the file of this test.
func TestWhereTheCodeIs(t *testing.T) {
	file, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer parsed.Close()
	at, size := codeOf(file[:1024])
	here := uint64(reflect.ValueOf(TestWhereTheCodeIs).Pointer())
	if parsed.Type == elf.ET_EXEC != (at <= here && here < at+size) {
		t.Errorf("%v: it is at %#x, and the code at %#x with %#x bytes", parsed.Type, here, at, size)
	}
	mapCode()
	for _, n := range []int{0, 63, 64, 100} {
		if _, size := codeOf(file[:n]); size != 0 {
			t.Errorf("of %d bytes there are %d of code", n, size)
		}
	}
	for _, i := range []int{0, 4, 5, 16, 35, 54, 57} { // what says that it is another sort of file, or larger
		bad := append([]byte(nil), file[:1024]...)
		bad[i] ^= 0x7f
		if _, size := codeOf(bad); size != 0 {
			t.Errorf("with another byte %d there are %d of code", i, size)
		}
	}
}
