package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	usual          = 60 * time.Second // that a token lasts whose end is not said
	registriesMost = 4                // questions at a time; others wait for their turn
)

// A Pull asks the token service of a registry of containers for one token ("Token Authentication Specification" of the distribution
// project).
type Pull struct {
	Realm   string // an https URL, which the operator or the table of egressd names
	Service string // by which it knows the registry
	Scope   string // "" for none
	Holder  string // whose sandbox asks, for turns
	Sandbox string
	User    string
	Secret  string
}

// ByRegistry asks for a token, in the turn of the sandbox. The error holds no scope.
func (c *Asker) ByRegistry(ctx context.Context, p Pull) (Token, error) {
	if err := c.turns.Take(ctx, p.Holder, p.Sandbox); err != nil {
		return Token{}, err
	}
	defer c.turns.Give()
	u, err := url.Parse(p.Realm)
	if err != nil || u.Scheme != "https" {
		return Token{}, errors.New("the realm is no URL with https")
	}
	query := u.Query()
	query.Set("service", p.Service)
	if p.Scope != "" {
		query.Set("scope", p.Scope)
	}
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Token{}, errors.New("the realm cannot be asked")
	}
	r.Header.Set("User-Agent", "egressd")
	r.Header.Set("Accept", "application/json")
	r.SetBasicAuth(p.User, p.Secret)
	asked := time.Now()
	status, text, err := c.do(r)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("%s %w", u.Host, err)
	case status != http.StatusOK:
		return Token{}, fmt.Errorf("%s answered %d", u.Host, status)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if json.Unmarshal(text, &answer) != nil {
		return Token{}, fmt.Errorf("%s answered with no token", u.Host)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	if answer.Token == "" || strings.ContainsFunc(answer.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return Token{}, fmt.Errorf("%s answered with no token", u.Host)
	}
	lasts := usual
	if answer.ExpiresIn > 0 {
		lasts = min(time.Duration(answer.ExpiresIn)*time.Second, time.Hour)
	}
	return Token{Text: answer.Token, Until: asked.Add(lasts)}, nil
}
