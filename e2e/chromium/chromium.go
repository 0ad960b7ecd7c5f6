// Package chromium drives Chromium in tests, to use the page of egressd ui as a person does.
package chromium

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// StartPageOf starts egressd ui beside a daemon, and returns its link and its process.
func StartPageOf(t *testing.T, d *world.Daemon) (string, *exec.Cmd) {
	t.Helper()
	cmd := d.Command(t.Context(), nil, "ui", "--no-open", "--config", d.Config)
	return LinkOf(t, cmd, func() error { return d.World.Gateway.Start(cmd) }), cmd
}

// LinkOf starts egressd ui, which ends with the test, and returns its link.
func LinkOf(t *testing.T, cmd *exec.Cmd, start func() error) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = os.Stderr
		err = start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	link, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(link)
}

// Open opens the page by its link.
func Open(t *testing.T, ctx context.Context, link string) (base string) {
	t.Helper()
	base, _, _ = strings.Cut(link, "/open/")
	Do(t, ctx, chromedp.Navigate(link), chromedp.WaitVisible("nav", chromedp.ByQuery))
	return base
}

// In starts Chromium in another network, and leads its port of commands here.
func In(t *testing.T, n *lab.Net) context.Context {
	t.Helper()
	Loopback(t)
	const port = "127.0.0.1:9333"
	cmd := exec.Command("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--user-data-dir="+Profile(t), "--remote-debugging-port=9333", "--remote-allow-origins=*", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := n.Dial("tcp", port)
			if err != nil {
				near.Close()
				continue
			}
			go func() { _, _ = io.Copy(far, near); far.Close() }()
			go func() { _, _ = io.Copy(near, far); near.Close() }()
		}
	}()
	if !world.Eventually(world.Settling, func() bool {
		c, err := n.Dial("tcp", port)
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("Chromium takes no commands")
	}
	ctx, cancel := chromedp.NewRemoteAllocator(t.Context(), "http://"+l.Addr().String())
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Profile is a new folder for Chromium, whose processes write into it for a moment after Chromium has ended.
func Profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !world.Eventually(world.Patience, func() bool { err = os.RemoveAll(dir); return err == nil }) {
			t.Error(err)
		}
	})
	return dir
}

// Loopback brings up the loopback of the network that the tests are in.
func Loopback(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Do runs actions, each of which has to work.
func Do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// WaitFor goes to an address, unless it is "", and waits until a condition holds there.
func WaitFor(t *testing.T, ctx context.Context, what, address, condition string) {
	t.Helper()
	if address != "" {
		Do(t, ctx, chromedp.Navigate(address))
	}
	holds := func() (yes bool) { // the page's policy forbids the evaluation inside of it that chromedp.Poll needs
		return chromedp.Run(ctx, chromedp.Evaluate("!!("+condition+")", &yes)) == nil && yes
	}
	if !world.Eventually(world.Settling, holds) {
		var text string
		_ = chromedp.Run(ctx, chromedp.Text("main", &text, chromedp.ByQuery))
		t.Fatalf("%s: not so, the page shows %.1500s", what, text)
	}
}

// AllowFromRow allows what the requests of a filter were denied for: a click on the row and one on the rule that is shown before it is
// written. It returns how long that took.
func AllowFromRow(t *testing.T, ctx context.Context, base, filter string) time.Duration {
	t.Helper()
	const act, save = `a.act[href$="verdict=allow"]`, `input[name=digest] + button`
	Do(t, ctx, chromedp.Navigate(base+"/requests?q="+url.QueryEscape(filter)), chromedp.WaitVisible(act, chromedp.ByQuery))
	began := time.Now()
	Do(t, ctx, chromedp.Click(act, chromedp.ByQuery), chromedp.WaitVisible(save, chromedp.ByQuery), chromedp.Click(save, chromedp.ByQuery),
		chromedp.WaitNotPresent(save, chromedp.ByQuery), chromedp.WaitVisible(".notice", chromedp.ByQuery))
	return time.Since(began).Round(time.Millisecond)
}
