// Package client asks a running egressd serve at its operator's listener, listen.admin.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
)

const (
	answerWithin = 20 * time.Second
	changeWithin = 3 * time.Minute // in which bundles may be fetched
	answerMost   = 4 << 20
)

// A Client asks the operator's listener of one policy.
type Client struct {
	base  string // of URLs
	At    string // the listener, as the policy file names it
	token string
	http  *http.Client
	path  string // of the policy file
	wrong error  // with that file

	silent atomic.Bool // the last connection stood, and brought no byte
}

// A listening connection notes that it brought something.
type listening struct {
	net.Conn
	client *Client
}

func (l listening) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.client.silent.Store(false)
	}
	return n, err
}

// A Place names an egressd serve. If Admin is set, it is the address of the operator's listener. Else Config is the path of
// the policy file, or "" for the usual one.
type Place struct{ Config, Admin string }

// Flags returns the flags with which another command asks the same daemon, with a space before them.
func (p *Place) Flags() string {
	switch {
	case p.Admin != "":
		return " --admin " + shell.Word(p.Admin)
	case p.Config != "":
		return " --config " + shell.Word(p.Config)
	}
	return ""
}

// listener returns where the daemon listens, and what is wrong with its policy file by now.
func (p *Place) listener() (c *config.Config, wrong, err error) {
	if p.Admin != "" {
		if err := file.CheckAdmin(p.Admin); err != nil {
			return nil, nil, hint.Misused(fmt.Errorf("--admin: %w", err), "--admin unix:/path/of/admin.sock, or --admin 127.0.0.1:9464")
		}
		return &config.Config{File: &file.File{Listen: file.Listen{Admin: p.Admin}}}, nil, nil
	}
	_, wrong = config.Load(p.Config)
	c, err = config.Places(p.Config)
	return c, wrong, err
}

// Dial finds the operator's listener of a place, also if its policy file has an error by now. It does not connect yet.
func Dial(at Place) (*Client, error) {
	cfg, wrong, err := at.listener()
	if err != nil {
		return nil, hint.Unsure(err)
	}
	if unset := cfg.File.Unset("listen.admin"); len(unset) > 0 {
		return nil, hint.Misused(unset, "set the variable, or write the path into "+cfg.Path)
	}
	name := cfg.AdminName()
	if name == "" {
		return nil, hint.Misused(fmt.Errorf("%s switches off the operator's listener of egressd serve", cfg.Path), "take listen.admin out of the file and restart egressd serve")
	}
	c := &Client{base: "http://" + name, At: name, path: cfg.Path, wrong: wrong}
	to := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", name)
	}
	if sockets := adminSockets(cfg); len(sockets) > 0 {
		c.base = "http://egressd"
		to = func(ctx context.Context, _, _ string) (net.Conn, error) { return firstOf(ctx, sockets) }
	} else if err := c.readToken(cfg); err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := to(ctx, network, address)
		if c.silent.Store(err == nil); err != nil {
			return nil, err
		}
		return listening{conn, c}, nil
	}
	c.http = &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// adminSockets returns the paths at which the daemon may listen, the likeliest first.
func adminSockets(c *config.Config) []string {
	socket := c.AdminSocket()
	switch {
	case socket == "":
		return nil
	case c.File.Listen.Admin == "":
		return c.DefaultAdminSockets()
	}
	return []string{socket}
}

// firstOf connects to the first socket at which a daemon listens. If it fails, it returns the error of the first socket.
// If only a later socket is closed to this user, firstOf joins that error to it.
func firstOf(ctx context.Context, sockets []string) (net.Conn, error) {
	var failed []error
	for _, path := range sockets {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return c, nil
		}
		failed = append(failed, err)
	}
	return nil, whyNone(failed)
}

func whyNone(failed []error) error {
	if errors.Is(failed[0], fs.ErrPermission) {
		return failed[0]
	}
	for _, err := range failed[1:] {
		if errors.Is(err, fs.ErrPermission) {
			return errors.Join(failed[0], err)
		}
	}
	return failed[0]
}

func (c *Client) readToken(cfg *config.Config) error {
	path, err := cfg.AdminToken()
	if err != nil {
		return err
	}
	text, err := durable.Plain(path, 1024)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return hint.Failed(fmt.Errorf("there is no token in %s", path), "egressd serve, which makes it, as the same user")
	case err != nil:
		return hint.Failed(fmt.Errorf("read the token of listen.admin: %w", err), "the same command as the user of egressd serve")
	}
	c.token = strings.TrimSpace(string(text))
	return nil
}

// Ask sends a request without a body, see [Client.Send].
func (c *Client) Ask(ctx context.Context, method, path string, v any, wanted ...int) (int, error) {
	return c.Send(ctx, method, path, nil, v, wanted...)
}

// Send sends a request with body as JSON, or with no body if body is nil, and decodes the response into v.
// It returns the status. A status other than 200 and those of wanted is an error.
func (c *Client) Send(ctx context.Context, method, path string, body, v any, wanted ...int) (int, error) {
	within := changeWithin
	if method == http.MethodGet {
		within = answerWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r, err := c.request(ctx, method, path, body)
	if err != nil {
		return 0, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, c.explain(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerMost))
	if err != nil {
		return 0, c.explain(err)
	}
	for _, status := range append(wanted, http.StatusOK) {
		if answer.StatusCode == status {
			if err := json.Unmarshal(text, v); err != nil {
				return 0, hint.Failed(fmt.Errorf("what answers at %s is no egressd: %w", c.At, err), "egressd doctor")
			}
			return status, nil
		}
	}
	var why admin.Failure
	if json.Unmarshal(bytes.TrimSpace(text), &why) != nil || why.Error == "" {
		why = admin.Failure{Error: "it answered " + answer.Status, Hint: "egressd doctor"}
	}
	return answer.StatusCode, hint.Failed(errors.New(why.Error), why.Hint)
}

func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return r, nil
}

// explain turns a failed exchange into an error with a hint.
func (c *Client) explain(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		if c.wrong != nil {
			return hint.Failed(fmt.Errorf("egressd serve is not running: nothing listens at %s; and %w", c.At, c.wrong), "correct "+c.path+", then egressd serve --config "+shell.Word(c.path))
		}
		if c.path == "" {
			return hint.Failed(fmt.Errorf("nothing listens at %s", c.At), "egressd serve says at its start where its operator's listener is (admin); --admin takes that")
		}
		next := "egressd serve --config " + shell.Word(c.path)
		if errors.Is(err, fs.ErrPermission) { // of the system's socket
			next += "; if root runs egressd serve for this file: the same command as root"
		}
		return hint.Failed(fmt.Errorf("egressd serve is not running: nothing listens at %s", c.At), next)
	}
	if late := net.Error(nil); c.silent.Load() && (!errors.As(err, &late) || !late.Timeout()) && !errors.Is(err, context.Canceled) {
		return hint.Failed(fmt.Errorf("egressd serve closed the connection at %s without an answer: it answers root and its own user alone, and nobody in another network namespace, such as a container's (%w)", c.At, err),
			"the same command as root or as the user of egressd serve, outside of containers and of egressd run; egressd log kind:admin says who was turned away")
	}
	err = fmt.Errorf("ask egressd serve at %s: %w", c.At, err)
	if errors.Is(err, fs.ErrPermission) {
		return hint.Failed(err, "the same command as root, or as the user of egressd serve")
	}
	return hint.Failed(err, "egressd doctor")
}
