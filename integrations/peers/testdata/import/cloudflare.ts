export class Box extends Sandbox<Env> {
  enableInternet = false;
  interceptHttps = true; // deniedHosts = []
  allowedHosts = ["api.example.com", "*.cdn.example", "api-*.example.net"];
  deniedHosts: string[] = ["ads.cdn.example", "10.0.0.0/8"];
}
