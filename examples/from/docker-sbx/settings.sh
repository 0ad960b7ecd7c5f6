sbx policy init deny-all
sbx policy allow network "example.com:443,**.example.com,*.pkg.example"
sbx policy allow network "10.1.2.3:22"
sbx policy allow network api.internal.example
sbx policy deny network ads.example.com
sbx policy deny network "**.internal.example"
