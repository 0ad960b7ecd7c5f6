//go:build linux

package main

import (
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	patience = 30 * time.Second
	settling = 1500 * time.Millisecond // in which egressd does what it does once a second
)

// A world is what egressd needs beside itself, and the egressd that is measured.
type world struct {
	dir, egressd, config, output string
	counters                     string // folder for the counters of the egressd that is started next

	clear, opaque, inspected *httptest.Server
	roots                    *x509.CertPool // of the origins
	zone                     net.PacketConn

	proxy, names string // where egressd listens
}

func newWorld(dir string) (*world, error) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "here") })
	w := &world{
		dir: dir, egressd: filepath.Join(dir, "egressd"), config: filepath.Join(dir, "egressd.yaml"), output: filepath.Join(dir, "output"),
		clear: httptest.NewServer(page), opaque: httptest.NewTLSServer(page), inspected: httptest.NewUnstartedServer(page),
		roots: x509.NewCertPool(),
	}
	w.inspected.EnableHTTP2 = true
	w.inspected.StartTLS()
	w.roots.AddCert(w.opaque.Certificate())
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.opaque.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "roots.pem"), roots, 0o600); err != nil {
		return nil, err
	}
	var err error
	if w.zone, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	go serveNames(w.zone)
	return w, nil
}

func (w *world) close() {
	w.clear.Close()
	w.opaque.Close()
	w.inspected.Close()
	w.zone.Close()
}

// serveNames answers every question for an IPv4 address with 127.0.0.1, and others with nothing, until c is closed.
func serveNames(c net.PacketConn) {
	room := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(room)
		if err != nil {
			return
		}
		const header, typeAndClass = 12, 4
		end := header
		for end < n && room[end] > 0 {
			end += 1 + int(room[end])
		}
		if end += 1 + typeAndClass; end > n {
			continue
		}
		answer := append([]byte(nil), room[:end]...)
		answer[2], answer[3] = 0x81, 0x80 // a response, with recursion
		clear(answer[6:header])
		if binary.BigEndian.Uint16(answer[end-typeAndClass:]) == 1 {
			answer[7] = 1
			answer = append(answer, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
		}
		if _, err := c.WriteTo(answer, from); err != nil {
			return
		}
	}
}

func (w *world) page(scheme string, origin *httptest.Server) string {
	return scheme + "://" + host + ":" + portOf(origin) + "/"
}

func portOf(origin *httptest.Server) string {
	_, port, _ := net.SplitHostPort(origin.Listener.Addr().String())
	return port
}

// authority is the pool of the certificate authority that egressd has made.
func (w *world) authority() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, file := range []string{"ca.crt", "ca.pem"} {
		if text, err := os.ReadFile(filepath.Join(w.dir, "ca", file)); err == nil {
			pool.AppendCertsFromPEM(text)
		}
	}
	return pool
}

// writeConfig writes the policy of every operation.
func (w *world) writeConfig() error {
	text := fmt.Sprintf(`version: 1
listen: {proxy: ["127.0.0.1:0"], dns: ["127.0.0.1:0"], admin: "unix:%s/admin.sock"}
allow:
  - %[2]s:%[3]s
  - %[2]s:%[4]s
  - {host: "%[2]s:%[5]s", methods: [GET]}
unsafe_allow: ["127.0.0.0/8:*"]
upstream: {dns: ["%[6]s"]}
tls: {ca_dir: "%[1]s/ca", extra_roots: ["%[1]s/roots.pem"]}
audit: {dir: "%[1]s/log"}
`, w.dir, host, portOf(w.clear), portOf(w.opaque), portOf(w.inspected), w.zone.LocalAddr())
	return os.WriteFile(w.config, []byte(text), 0o600)
}

// command prepares egressd with fresh state.
func (w *world) command(args ...string) (*exec.Cmd, *os.File, error) {
	for _, old := range []string{"log", "log-keys", "home", "ca"} { // what one egressd leaves, the next one works with
		if err := os.RemoveAll(filepath.Join(w.dir, old)); err != nil {
			return nil, nil, err
		}
	}
	home := filepath.Join(w.dir, "home")
	if err := errors.Join(os.Mkdir(home, 0o700), w.writeConfig()); err != nil {
		return nil, nil, err
	}
	output, err := os.Create(w.output)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(w.egressd, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + w.dir, "XDG_RUNTIME_DIR=" + home, "GOCOVERDIR=" + w.counters}
	return cmd, output, nil
}

// serving does one thing while egressd serves.
func serving(do func(*world) error) func(*world) error {
	return func(w *world) error {
		cmd, output, err := w.command("serve", "--config", w.config)
		if err != nil {
			return err
		}
		defer output.Close()
		if err := cmd.Start(); err != nil {
			return err
		}
		err = w.found()
		if err == nil {
			err = do(w)
		}
		time.Sleep(settling)
		_ = cmd.Process.Signal(syscall.SIGTERM) // which fails only if it has ended
		if ended := cmd.Wait(); ended != nil || err != nil {
			said, _ := os.ReadFile(w.output)
			return fmt.Errorf("%w\n%s", errors.Join(err, ended), said)
		}
		return nil
	}
}

// running runs reach itself under egressd run, to do one step of [visit].
func running(step string) func(*world) error {
	return func(w *world) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd, output, err := w.command("run", "--config", w.config, "--no-ca", "--", self, inside, step+":"+portOf(w.opaque))
		if err != nil {
			return err
		}
		defer output.Close()
		if err := cmd.Run(); err != nil {
			said, _ := os.ReadFile(w.output)
			return fmt.Errorf("%w\n%s", err, said)
		}
		return nil
	}
}

var listens = regexp.MustCompile(`listening on (\S+) \((proxy|dns)\)`)

// found waits until egressd listens.
func (w *world) found() error {
	if err := w.await("egressd: policy "); err != nil {
		return err
	}
	said, err := os.ReadFile(w.output)
	if err != nil {
		return err
	}
	for _, m := range listens.FindAllStringSubmatch(string(said), -1) {
		if m[2] == "dns" {
			w.names = m[1]
		} else {
			w.proxy = m[1]
		}
	}
	if w.proxy == "" || w.names == "" {
		return errors.New("egressd does not say where it listens")
	}
	return nil
}

// await waits until egressd has said something.
func (w *world) await(what string) error {
	for late := time.Now().Add(patience); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		if said, err := os.ReadFile(w.output); err != nil || strings.Contains(string(said), what) {
			return err
		}
	}
	return fmt.Errorf("egressd has not said %q in %v", what, patience)
}
