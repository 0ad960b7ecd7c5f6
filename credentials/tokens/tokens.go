// Package tokens gets access tokens from the servers that hand them out: of OAuth (RFC 6749), by client credentials or a refresh
// token, of GitHub Apps, and the token services of registries. It keeps nothing and reads no file. It asks URLs that the operator or
// the table of egressd names, and never one that a server sends. No error holds a secret or a text of the server.
//
//	token, err := tokens.New(roots, addrs).ByOAuth(ctx, tokens.TokenRequest{URL: "https://id.example.com/token", ClientID: "x", Secret: secret})
package tokens

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// A Token is what a server has handed out.
type Token struct {
	Text    string
	Until   time.Time // zero if the server does not say
	Refresh string    // the refresh token for the next time: another one if the server has replaced it
}

// A TokenRequest is a question to a token endpoint. With Refresh it is a refresh (RFC 6749 section 6), else one by client credentials
// (section 4.4).
type TokenRequest struct {
	URL, ClientID, Secret, Refresh string
	Scopes                         []string
}

// ByOAuth asks for an access token.
func (c *Asker) ByOAuth(ctx context.Context, o TokenRequest) (Token, error) {
	if err := CheckURL(o.URL); err != nil {
		return Token{}, err
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, c.http)
	var got *oauth2.Token
	var err error
	if o.Refresh == "" {
		config := clientcredentials.Config{ClientID: o.ClientID, ClientSecret: o.Secret, TokenURL: o.URL, Scopes: o.Scopes}
		got, err = config.Token(ctx)
	} else {
		config := oauth2.Config{ClientID: o.ClientID, ClientSecret: o.Secret, Endpoint: oauth2.Endpoint{TokenURL: o.URL}}
		got, err = config.TokenSource(ctx, &oauth2.Token{RefreshToken: o.Refresh}).Token()
	}
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response != nil:
		return Token{}, fmt.Errorf("the token server answered %d%s", refused.Response.StatusCode, known(refused.ErrorCode))
	case err != nil:
		return Token{}, fmt.Errorf("the token server: %s", plain(err))
	}
	return Token{Text: got.AccessToken, Until: got.Expiry, Refresh: got.RefreshToken}, nil
}

// known is an error code that RFC 6749 has, for a message: a server may repeat anything in that place.
func known(code string) string {
	switch code {
	case "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope":
		return " (" + code + ")"
	}
	return ""
}

// An Installation is where a GitHub App is installed.
type Installation struct {
	API, ID, Number string // of the interface, without a slash behind; of the app, or its client ID; of the installation
	Repositories    []string
	Permissions     map[string]string
}

// ByGitHubApp asks for an installation token, as the app whose private key is given in PEM.
func (c *Asker) ByGitHubApp(ctx context.Context, a Installation, key []byte) (Token, error) {
	if err := CheckURL(a.API); err != nil {
		return Token{}, err
	}
	private, err := jwt.ParseRSAPrivateKeyFromPEM(key)
	if err != nil {
		return Token{}, errors.New("the private key of the app is no RSA key in PEM")
	}
	now := time.Now()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{ // in the past, since clocks differ
		Issuer: a.ID, IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), ExpiresAt: jwt.NewNumericDate(now.Add(9 * time.Minute)),
	}).SignedString(private)
	if err != nil {
		return Token{}, errors.New("the private key of the app cannot sign")
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{a.Repositories, a.Permissions})
	if err != nil {
		return Token{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(a.API, "/")+"/app/installations/"+url.PathEscape(a.Number)+"/access_tokens", bytes.NewReader(body))
	if err != nil {
		return Token{}, errors.New("the URL of the app cannot be asked for")
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + signed, "Accept": "application/vnd.github+json", "Content-Type": "application/json", "User-Agent": "egressd", "X-GitHub-Api-Version": "2022-11-28"} {
		r.Header.Set(name, value)
	}
	status, text, err := c.do(r)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("GitHub %w", err)
	case status != http.StatusCreated:
		return Token{}, fmt.Errorf("GitHub answered %d", status)
	}
	var got struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if json.Unmarshal(text, &got) != nil || got.Token == "" {
		return Token{}, errors.New("GitHub's answer is no token")
	}
	return Token{Text: got.Token, Until: got.Expires}, nil
}
