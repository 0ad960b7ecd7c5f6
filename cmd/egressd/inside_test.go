package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/ahead"
)

// TestTheInsideOfAJailWaitsForNothing starts this program as one whose control socket
// is not there, so that it ends at once, and has the runtime say what was initialised.
func TestTheInsideOfAJailWaitsForNothing(t *testing.T) {
	inside := exec.Command("/proc/self/exe", ahead.Argument, "99")
	inside.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := inside.CombinedOutput()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 125 {
		t.Fatalf("%v, want the status 125\n%s", err, trace)
	}
	was := func(pkg string) bool { return strings.Contains(string(trace), "init "+pkg+" @") }
	if !was("os") || !was("golang.org/x/sys/unix") {
		t.Fatalf("the trace does not have what it needs:\n%s", trace)
	}
	for _, pkg := range []string{
		"net/netip", "net/http", "crypto/tls", "go.yaml.in/yaml/v3", "github.com/spf13/cobra", "github.com/open-policy-agent/opa/v1/ir/v1pb", "github.com/open-policy-agent/opa/v1/ast",
		"google.golang.org/protobuf/internal/impl", "github.com/egressd/egressd/policy", "main",
	} {
		if was(pkg) {
			t.Errorf("it waited for %s", pkg)
		}
	}
}
