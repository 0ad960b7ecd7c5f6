package jailinit

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMessagesToTheKernelAreAligned(t *testing.T) {
	var r request
	r.put(7, unix.NLM_F_ACK, []byte{1, 2, 3, 4})
	r.attribute(5, 'a', 'b', 'c')
	r.nested(unix.NLA_F_NESTED|6, func() { r.attribute(1, 9) })
	r.put(8, 0, nil)
	r.end()

	first := binary.NativeEndian.Uint32(r.text)
	if want := uint32(16 + 4 + 8 + 12); first != want {
		t.Fatalf("the first message has %d bytes, want %d", first, want)
	}
	if size := binary.NativeEndian.Uint16(r.text[20:]); size != 7 {
		t.Errorf("an attribute of three bytes says that it has %d, want 7, without its padding", size)
	}
	if size, kind := binary.NativeEndian.Uint16(r.text[28:]), binary.NativeEndian.Uint16(r.text[30:]); size != 12 || kind != unix.NLA_F_NESTED|6 {
		t.Errorf("the attribute that holds another has %d bytes and is %#x", size, kind)
	}
	second := r.text[first:]
	if size, number := binary.NativeEndian.Uint32(second), binary.NativeEndian.Uint32(second[8:]); size != 16 || number != 2 {
		t.Errorf("the second message has %d bytes and the number %d", size, number)
	}
}

// spoken is what the kernel says of a message.
func spoken(number uint32, code int32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+4+unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NLMSG_ERROR)
	binary.NativeEndian.PutUint32(b[8:], number)
	binary.NativeEndian.PutUint32(b[16:], uint32(code))
	return b
}

func TestOnlyWhatTheKernelSaysIsDoneIsDone(t *testing.T) {
	said := answers{}
	for _, packet := range [][]byte{spoken(1, 0), append(spoken(2, -int32(unix.EEXIST)), spoken(3, 0)...), spoken(2, 0)} {
		if err := said.add(packet); err != nil {
			t.Fatal(err)
		}
	}
	if err := said.of(1, 3); err != nil {
		t.Errorf("what was done: %v", err)
	}
	if err := said.of(1, 2); !errors.Is(err, unix.EEXIST) {
		t.Errorf("what failed, and was said to be done later: %v", err)
	}
	if err := said.of(1, 4); !errors.Is(err, errSilent) {
		t.Errorf("what nothing was said of: %v", err)
	}
	if err := said.any(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("any failure: %v", err)
	}
}

func TestAnswersThatCannotBeReadAreErrors(t *testing.T) {
	short, long, other := spoken(1, 0), spoken(1, 0), spoken(1, 0)
	binary.NativeEndian.PutUint32(short, 8)
	binary.NativeEndian.PutUint32(long, 4096)
	binary.NativeEndian.PutUint16(other[4:], unix.NLMSG_DONE)
	for name, packet := range map[string][]byte{"a length that ends in the header": short, "a length past the end": long, "no answer": other} {
		if err := (answers{}).add(packet); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// inNamespaces runs the test again in a user and a network namespace of its own, and
// reports whether this is the one that runs there.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	const marker = "EGRESSD_TEST_NAMESPACES"
	if os.Getenv(marker) != "" {
		return true
	}
	again := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	again.Env = append(os.Environ(), marker+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// TestRulesThatTheKernelDoesNotTakeAreAnError asks the kernel itself for what it
// does not know, and for what is there already.
func TestRulesThatTheKernelDoesNotTakeAreAnError(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	plan := Plan{IPv4: []byte{100, 127, 0, 1}, IPv6: []byte{0x2d, 0, 15: 1}}
	ipv6, err := MakeNetwork(plan)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := MakeNetwork(plan); err == nil {
		t.Error("addresses that are there already were added")
	}
	bad := tproxyRules(plan, ipv6)
	bad.rule([]expression{{"nothing", func(*ruleset) {}}})
	bad.rule(accept())
	if err := bad.load(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a rule with an expression that there is not: %v", err)
	}
	redirected := true
	if err := Capture(plan, ipv6, &redirected); err != nil {
		t.Errorf("rules that are right, after some that were not: %v", err)
	}
	if err := tproxyRules(plan, ipv6).load(); err == nil {
		t.Error("a chain was made that is there with another hook")
	}
}
