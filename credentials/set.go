package credentials

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/credentials/tokens"
	"github.com/egressd/egressd/internal/secret"
)

// A Credential is a [Spec] and its secret as it was last read. It is safe for concurrent use.
type Credential struct {
	Spec

	// Plain is not nil for the credential of one rule that replaces one header field, whatever the client sent.
	Plain *Plain

	// Servers asks servers that hand tokens out. It is set before a credential is read that comes from one.
	Servers *tokens.Asker

	relative func(path string) string // to the folder of the policy file
	now      atomic.Pointer[secret.Secret]
	before   atomic.Pointer[secret.Secret] // the one that now took the place of, or nil
	until    atomic.Int64                  // Unix seconds at which now ends, or 0

	keys, keysBefore atomic.Pointer[awsKeys] // of the kind AWS; now is its secret part

	tokens keptTokens // of the kind Docker
}

// Plain is what a rule with a credential of its own says of it.
type Plain struct {
	Rule, Host, Header, Value, Placeholder string
}

// New returns a credential whose secret was not read yet. relative makes paths absolute.
func New(spec Spec, plain *Plain, relative func(string) string) *Credential {
	return &Credential{Spec: spec, Plain: plain, relative: relative}
}

// Read reads the secret from its source. A secret that cannot be read leaves the one before in place, until its
// end. The error holds no part of a secret.
func (c *Credential) Read(ctx context.Context) error {
	var keys awsKeys
	text, until, err := []byte(nil), int64(0), error(nil)
	if c.AWS != nil {
		keys, until, err = c.readAWS(ctx, c.relative)
		text = []byte(keys.secret)
	} else {
		text, until, err = c.From.read(ctx, c.relative, c.Servers)
	}
	if err != nil {
		return fmt.Errorf("credential %s: %w", c.Name, err)
	}
	o := secret.Options{Header: "Authorization", Text: text}
	if p := c.Plain; p != nil {
		o.Header, o.Value, o.Placeholder = p.Header, p.Value, p.Placeholder
	}
	s, err := secret.New(o)
	if err != nil {
		return fmt.Errorf("credential %s: %w", c.Name, err)
	}
	c.until.Store(until)
	if now := c.now.Load(); now == nil || !now.Same(s) {
		c.before.Store(now)
		c.keysBefore.Store(c.keys.Load())
		c.keys.Store(&keys)
		c.now.Store(s)
	}
	return nil
}

// Held reports whether there is a secret that may be used.
func (c *Credential) Held() bool { return c.now.Load() != nil && !c.isOver() }

func (c *Credential) isOver() bool {
	until := c.until.Load()
	return until != 0 && time.Now().Unix() >= until
}

// Secrets are those that responses may hold: the one in use and the one before.
func (c *Credential) Secrets() (all []*secret.Secret) {
	for _, s := range []*secret.Secret{c.now.Load(), c.before.Load()} {
		if s != nil {
			all = append(all, s)
		}
	}
	for _, k := range []*awsKeys{c.keys.Load(), c.keysBefore.Load()} {
		if k != nil {
			all = append(all, k.strikes...)
		}
	}
	return all
}

// Travels reports whether requests carry the secret, so that a server could return pieces of it.
func (c *Credential) Travels() bool { return c.AWS == nil }

// Next is how long to wait before the secret is read again: 0 for never. A secret that ends is read again when a
// fifth of its time is left, at most five minutes. One that could not be read is tried again soon.
func (c *Credential) Next() time.Duration {
	switch until := c.until.Load(); {
	case c.Plain != nil:
		return c.From.Refresh
	case c.now.Load() == nil:
		return unreadAgain
	case until != 0:
		left := time.Until(time.Unix(until, 0))
		return max(left-min(left/5, 5*time.Minute), unreadAgain)
	case c.From.Refresh > 0:
		return c.From.Refresh
	case c.From.File != "":
		return fileAgain
	case c.From.OAuth != nil || c.From.GitHubApp != nil:
		return grantedAgain
	}
	return 0
}

const (
	unreadAgain = 10 * time.Second
	fileAgain   = 2 * time.Second

	grantedAgain = 30 * time.Minute // of a token whose server does not say when it ends
)

// A Set is the credentials of one policy. It never changes and is safe for concurrent use.
type Set struct {
	key   Key
	all   []*Credential
	plain map[string]*Credential // by rule
}

// NewSet returns the set of all, whose placeholders are made with the key.
func NewSet(key Key, all []*Credential) *Set {
	s := &Set{key: key, all: all, plain: map[string]*Credential{}}
	for _, c := range all {
		if c.Plain != nil {
			s.plain[c.Plain.Rule] = c
		}
	}
	return s
}

// All are the credentials of the set.
func (s *Set) All() []*Credential { return s.all }

// at returns the credential of a host: one that names it before one that names what it ends with.
func (s *Set) at(host string) (found *Credential) {
	for _, c := range s.all {
		if c.Plain != nil {
			continue
		}
		for i := range c.Places {
			switch p := &c.Places[i]; {
			case p.Host == host:
				return c
			case p.At(host):
				found = c
			}
		}
	}
	return found
}

// strays reports whether the head of a request still holds a placeholder of its sandbox in the clear or in Basic.
func (s *Set) strays(sandbox string, a *Answer) bool {
	if !holdsMark(a.Target, a.Fields) {
		return false
	}
	texts := []string{a.Target.Path, a.Target.Query}
	for _, f := range a.Fields {
		texts = append(texts, f.Value)
		if encoded, ok := strings.CutPrefix(f.Value, "Basic "); ok {
			if plain, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "=")); err == nil {
				texts = append(texts, string(plain))
			}
		}
	}
	return slices.ContainsFunc(s.all, func(c *Credential) bool {
		core := s.key.core(sandbox, c.Name)
		return c.Plain == nil && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, core) })
	})
}

// sample fills a template with the part of the secret that the placeholder looks like.
func (c *Credential) sample(template string) string {
	if k := c.keys.Load(); c.AWS != nil && k != nil {
		return strings.ReplaceAll(template, "{}", k.id)
	}
	return c.now.Load().Fill(template)
}

// Variables are what a sandbox gets: for each credential that is held, its variables with the placeholder. missing
// names the credentials that are not.
func (s *Set) Variables(sandbox string) (all []Variable, missing []string) {
	for _, c := range s.all {
		now := c.now.Load()
		switch {
		case c.Plain != nil || len(c.Spec.Variables) == 0:
		case now == nil || c.isOver():
			missing = append(missing, c.Name)
		default:
			fill := strings.NewReplacer("{}", c.placeholder(&s.key, sandbox, c.sample), "{secret}", s.key.core(sandbox, c.Name+"\x00secret"), "{token}", s.key.core(sandbox, c.Name+"\x00token"))
			for _, v := range c.Spec.Variables {
				all = append(all, Variable{v.Name, fill.Replace(v.Value)})
			}
		}
	}
	return all, missing
}
