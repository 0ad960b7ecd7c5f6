//go:build linux

package sandboxes

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/talk"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/egressd/egressd/sandbox/jail"
	"github.com/spf13/cobra"
)

// Where networks are attached, unless a flag says otherwise.
const (
	enterVariable = "EGRESSD_ENTER"
	enterSocket   = "/run/egressd/enter.sock"
)

// caFolderVariable names the folder for the bundle of authorities, where the usual one may not
// be there.
const caFolderVariable = "EGRESSD_CA_FOLDER"

func newEnter() *cobra.Command {
	var o enterOptions
	cmd := &cobra.Command{
		Use:   "enter [flags] [--] COMMAND [ARGUMENT…]",
		Short: "Put this container behind egressd and start a program (from inside)",
		Long: `Enter is for use inside a container that has no network but a loopback: docker run
--network none, bwrap --unshare-net, a dev container. It attaches that network to
the egressd serve at a Unix socket (listen.enter of its policy) and becomes
COMMAND. No egressd process stays inside. Enter refuses a network with any other
interface.

With CAP_NET_ADMIN all traffic is captured, as under egressd run. Without it
(Docker's default) egressd is a proxy on 127.0.0.1:3128, set by variables, and a
program that ignores it has no network. The first line on standard error says
which of the two applies.

The attachment ends with the process or with egressd serve; then enter again.
Exit codes are those of egressd run.`,
		Example: `  docker run --network none -v /run/egressd/web:/run/egressd:ro IMAGE egressd enter -- npm test
  bwrap --unshare-net --dev-bind / / egressd enter --socket /run/egressd/enter.sock -- sh`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return exits.AsSandbox(o.run(cmd.ErrOrStderr(), args))
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return exits.AsSandbox(cli.FlagError(cmd, err)) })
	socketFlag(cmd, &o.socket)
	cmd.Flags().StringVar(&o.name, "name", "", "`NAME` of the sandbox; only root and egressd's own user may choose one, outside any sandbox")
	cmd.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print errors only")
	return cmd
}

func socketFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "socket", "", "`PATH` of the socket at which egressd takes networks in (default: $"+enterVariable+", else "+enterSocket+")")
}

type enterOptions struct {
	socket, name string
	quiet        bool
}

// socketPath returns the socket at which the network is attached.
func socketPath(flag string) string {
	return strings.TrimPrefix(cmp.Or(flag, os.Getenv(enterVariable), enterSocket), file.UnixListener)
}

// run returns only where COMMAND was not started.
func (o *enterOptions) run(stderr io.Writer, argv []string) error {
	if len(argv) == 0 {
		return hint.Misused(errors.New("enter needs a program"), "egressd enter -- COMMAND")
	}
	if o.name != "" && !sandbox.PlainName(o.name) {
		return hint.Misused(fmt.Errorf("--name %s: a name has up to 64 letters, digits, dots, dashes and underscores", o.name), "egressd enter --name web -- COMMAND")
	}
	if o.quiet {
		stderr = &talk.Held{To: stderr, Quiet: true}
	}
	runtime.LockOSThread() // privileges belong to a thread
	network, err := attach.Prepare(ownAddresses())
	if err != nil {
		return notReady(err, "docker run --network none, or bwrap --unshare-net, around it")
	}
	handed, err := handIn(network, socketPath(o.socket), o.name)
	if err != nil {
		return err
	}
	defer handed.Close()
	env, err := enterEnvironment(network.Request, handed.Answer, stderr)
	if err != nil {
		return err
	}
	sayEntered(stderr, network.Request, handed.Answer)
	err = attach.Exec(argv, env, func(what string) { fmt.Fprintf(stderr, "egressd: warning: not given up: %s\n", what) })
	if _, ok := errors.AsType[*jail.ExecError](err); ok {
		return exits.NotStarted(err)
	}
	return hint.Failed(err, "egressd enter -- COMMAND, where prctl(2) is allowed")
}

func ownAddresses() attach.Addresses {
	own4, own6 := names.Own()
	return attach.Addresses{IPv4: own4, IPv6: own6}
}

// notReady says why a network cannot be attached, and how to make one that can.
func notReady(err error, next string) error {
	if errors.Is(err, attach.ErrAttached) {
		next = "start the program in it without egressd enter, or end the program that it is attached for"
	}
	return hint.Failed(err, next)
}

// handIn hands a network in and keeps none of its sockets.
func handIn(network *attach.Network, socket, name string) (*attach.Attached, error) {
	conn, err := attach.Dial(socket)
	if err != nil {
		network.Close()
		return nil, notHandedIn(err)
	}
	handed, err := network.Attach(conn, name)
	if err != nil {
		return nil, notHandedIn(err)
	}
	return handed, nil
}

func notHandedIn(err error) error {
	if refused, ok := errors.AsType[*attach.RefusedError](err); ok {
		return hint.Failed(err, refused.Hint)
	}
	if errors.Is(err, fs.ErrPermission) {
		return hint.Failed(fmt.Errorf("%w for user %d", err, os.Getuid()), fmt.Sprintf("in egressd's policy, name the user beside the socket of its sandbox: sandboxes: [{name: web, enter: \"unix:/run/egressd/web/enter.sock\", uid: [%d]}]", os.Getuid()))
	}
	return hint.Failed(err, "egressd serve outside, with listen: {enter: [\"unix:"+enterSocket+"\"]}; and mount the folder of the socket, or --socket PATH")
}

// sayEntered says what holds from now on.
func sayEntered(stderr io.Writer, o attach.Request, a attach.Answer) {
	how := string(o.Mode)
	switch o.Mode {
	case attach.Redirected:
		how = "transparent (NAT: datagrams are refused without a record)"
	case attach.ByProxy:
		how = fmt.Sprintf("proxy 127.0.0.1:%d, by variables alone (no CAP_NET_ADMIN): what ignores them has no network", attach.ProxyPort)
	}
	fmt.Fprintf(stderr, "egressd: sandbox %s · %s · policy %.8s…\n", printable.Text(a.Sandbox), how, strings.TrimPrefix(a.Policy, "sha256:"))
	if o.Mode != attach.ByProxy {
		return
	}
	if !o.Names {
		fmt.Fprintln(stderr, "egressd: names are not answered: port 53 of 127.0.0.1 cannot be had; programs that ask the proxy need none")
		return
	}
	if others := attach.Resolvers(); len(others) > 0 {
		fmt.Fprintf(stderr, "egressd: names are answered at 127.0.0.1, but /etc/resolv.conf asks %s\n", printable.Text(strings.Join(others, ", ")))
		hint.Sayf(stderr, "docker run --dns 127.0.0.1, or nameserver 127.0.0.1 in that file")
	}
}

// enterEnvironment is that of this process with what programs need to know of the proxy and
// of the authority.
func enterEnvironment(o attach.Request, a attach.Answer, stderr io.Writer) ([]string, error) {
	env := environ.Without(os.Environ(), []string{enterVariable, caFolderVariable})
	if o.Mode == attach.ByProxy {
		vars, _, err := environ.ForProxy(fmt.Sprintf("127.0.0.1:%d", attach.ProxyPort), nil)
		if err != nil {
			return nil, err
		}
		env = environ.With(env, vars)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Variables)) {
		env = environ.With(env, []environ.Variable{{Name: name, Value: a.Variables[name]}})
	}
	if a.CA == "" {
		return env, nil
	}
	path, err := writeBundle([]byte(a.CA))
	if err != nil {
		fmt.Fprintf(stderr, "egressd: warning: hosts that are looked into will not be trusted: %v\n", err)
		return env, nil
	}
	return environ.With(env, environ.ForTrust(path)), nil
}

// writeBundle writes what programs are to trust where the sandbox has room for it, and returns its path. Nobody removes the
// file, since enter becomes the program: the name is of the content, so that the next enter finds it.
func writeBundle(ca []byte) (string, error) {
	if _, system, err := certs.SystemRoots(); err == nil { // an image may have none
		ca = authority.Bundle(system, ca)
	}
	folder := os.Getenv(caFolderVariable)
	if folder == "" {
		folder = os.TempDir()
	}
	path := filepath.Join(folder, fmt.Sprintf("egressd-ca-%.16x.pem", sha256.Sum256(ca)))
	if isOwn(path, ca) {
		return path, nil
	}
	f, err := os.CreateTemp(folder, ".egressd-ca-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(ca)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return path, nil
}

// isOwn reports whether a file of this user, which nobody else can change, has a text.
func isOwn(path string, text []byte) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o644 || info.Size() != int64(len(text)) {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) != os.Geteuid() {
		return false
	}
	there, err := io.ReadAll(io.LimitReader(f, int64(len(text))))
	return err == nil && bytes.Equal(there, text)
}
