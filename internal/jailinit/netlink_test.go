package jailinit

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

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
